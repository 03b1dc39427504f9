/* The response of a group of rows; included once per kind of number and set of instructions. */

#define VEC NAME(vec)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define QUARTER NAME(quarter)
typedef REAL VEC __attribute__((vector_size(BYTES)));
typedef REAL QUARTER __attribute__((vector_size(16)));

/* The residuals of a group, and their products with some of its products. */
static TARGET void NAME(respond)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS, REAL *R)
{
    const REAL *constant = p->constant, *factor = p->factor, *y = p->y, *weight = p->weight;
    REAL omega[GROUP] = {0}, target[GROUP] = {0};
    for (int g = 0; g < rows; g++) {
        omega[g] = weight ? weight[start + g] : 1;
        target[g] = y ? y[start + g] : 0;
    }
    for (int64_t i = 0; i < p->m; i++) {
        const REAL *H = P + (p->right + i * p->k) * GROUP, *Zw = P + (p->k + i) * GROUP;
        REAL r[GROUP];
        for (int g = 0; g < GROUP; g++) r[g] = Zw[g];
        for (int64_t a = 0; a < p->k; a++)
            for (int g = 0; g < GROUP; g++)
                r[g] += factor[a] * P[a * GROUP + g] * H[a * GROUP + g];
        for (int g = 0; g < GROUP; g++) r[g] += constant[i] - target[g];
        if (PS)
            for (int g = 0; g < GROUP; g++) r[g] -= PS[i * GROUP + g];
        REAL *out = R + i * GROUP;
        for (int g = 0; g < GROUP; g++) out[g] = omega[g] * r[g];
        for (int g = 0; g < GROUP; g++) {
            p->total[i] += (double)out[g];
            *p->loss += (double)(out[g] * r[g]);
        }
        REAL *action = R + (p->m + i * p->actions) * GROUP;
        for (int64_t b = 0; b < p->actions; b++)
            for (int g = 0; g < GROUP; g++)
                action[b * GROUP + g] = out[g] * P[(p->action + b) * GROUP + g];
    }
}

/* Give the products of a group to those who ask for them, and the sums of products of two. */
static TARGET void NAME(hand_out)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS)
{
    if (p->products)
        for (int64_t c = p->quiet; c < p->q; c++)
            memcpy((REAL *)p->products + (c - p->quiet) * p->n + start, P + c * GROUP, rows * sizeof(REAL));
    if (p->squares)
        for (int64_t c = 0; c < p->s; c++)
            memcpy((REAL *)p->squares + c * p->n + start, PS + c * GROUP, rows * sizeof(REAL));
    const int64_t *into = p->into, *left = p->left, *right = p->right_of;
    const REAL *weight = p->pair_weight;
    for (int64_t t = 0; t < p->pairs;) { /* pairs are sorted by the sum they belong to */
        const int64_t sum = into[t];
        REAL total[GROUP] = {0};
        for (; t < p->pairs && into[t] == sum; t++)
            for (int g = 0; g < GROUP; g++)
                total[g] += weight[t] * P[left[t] * GROUP + g] * P[right[t] * GROUP + g];
        memcpy((REAL *)p->quadratic + sum * p->n + start, total, rows * sizeof(REAL));
    }
}

/* Set R to the response of a group, or to what was given. */
static TARGET void NAME(take_in)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS, REAL *R)
{
    if (p->respond) NAME(respond)(p, start, rows, P, p->s ? PS : NULL, R);
    else if (p->R)
        for (int64_t c = 0; c < p->columns; c++)
            memcpy(R + c * GROUP, (const REAL *)p->R + c * p->n + start, rows * sizeof(REAL));
}
