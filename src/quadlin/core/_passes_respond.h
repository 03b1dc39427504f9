/* The response of a group of rows; included once per kind of number and set of instructions. */

#define VEC NAME(vec)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define INDEX NAME(index)
#define LIST NAME(list)
#if BYTES / SIZE == 16
#define EACH EACH_OF_16
#elif BYTES / SIZE == 8
#define EACH EACH_OF_8
#elif BYTES / SIZE == 4
#define EACH EACH_OF_4
#else
#define EACH EACH_OF_2
#endif
typedef REAL VEC __attribute__((vector_size(BYTES)));
typedef WHOLE INDEX __attribute__((vector_size(BYTES)));

/* A number per row of a group, wherever it lies. */
typedef REAL LIST __attribute__((vector_size(GROUP * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* The residuals of a group, and their products with some of its products. */
static TARGET void NAME(respond)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS, REAL *R)
{
    const REAL *constant = p->constant, *factor = p->factor, *y = p->y, *weight = p->weight;
    const LIST *products = (const LIST *)P, *squares = (const LIST *)PS;
    LIST omega = {0}, target = {0};
    if (y) memcpy(&target, y + start, rows * sizeof(REAL));
    if (weight) memcpy(&omega, weight + start, rows * sizeof(REAL));
    else
        for (int g = 0; g < rows; g++) omega[g] = 1;
    for (int64_t i = 0; i < p->m; i++) {
        const LIST *H = products + p->right + i * p->k;
        LIST r = products[p->k + i];
        for (int64_t a = 0; a < p->k; a++) r += factor[a] * products[a] * H[a];
        r += constant[i] - target;
        if (PS) r -= squares[i];
        const LIST out = omega * r, loss = out * r;
        double sums[GROUP], losses[GROUP]; /* in halves: none of them waits for the one before */
        for (int g = 0; g < GROUP; g++) sums[g] = out[g], losses[g] = loss[g];
#pragma GCC unroll 3
        for (int half = GROUP / 2; half; half /= 2)
            for (int g = 0; g < half; g++) sums[g] += sums[g + half], losses[g] += losses[g + half];
        p->total[i] += sums[0];
        *p->loss += losses[0];
        LIST *action = (LIST *)R + p->m + i * p->actions;
        ((LIST *)R)[i] = out;
        for (int64_t b = 0; b < p->actions; b++) action[b] = out * products[p->action + b];
    }
}

/* Give the products of a group to those who ask for them. */
static TARGET void NAME(hand_out)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS)
{
    if (p->products)
        for (int64_t c = 0; c < p->q; c++)
            memcpy((REAL *)p->products + c * p->n + start, P + c * GROUP, rows * sizeof(REAL));
    if (p->squares)
        for (int64_t c = 0; c < p->s; c++)
            memcpy((REAL *)p->squares + c * p->n + start, PS + c * GROUP, rows * sizeof(REAL));
}

/* Set R to the response of a group, or to what was given. */
static TARGET void NAME(take_in)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS, REAL *R)
{
    if (p->respond) NAME(respond)(p, start, rows, P, p->s ? PS : NULL, R);
    else if (p->R)
        for (int64_t c = 0; c < p->columns; c++)
            memcpy(R + c * GROUP, (const REAL *)p->R + c * p->n + start, rows * sizeof(REAL));
}
