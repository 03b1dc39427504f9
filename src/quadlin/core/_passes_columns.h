/* Sweeps over the columns of sparse rows; included once per kind of number and set of instructions.
 *
 * f = c + x'w + sum_a s_a ((x'v_a)^2 - sum_j x_j^2 v_ja^2) is linear in (w_j, v_j): of each column they
 * are solved for by the rows that have it, whose errors and x'V then change at once.
 */

/* Write down what columns see of each other: m, S and p (see `sweep`), and the ridge of the levels. */
INLINE void NAME(survey_of)(columns *t, const int parts)
{
    const REAL *V = t->factors, *w = t->linear;
    eight *S = (eight *)t->gram, *m = (eight *)t->centre, *p = (eight *)t->pull;
    const eight *s = (const eight *)t->signs;
    for (int b = 0; b < parts; b++) m[b] = p[b] = (eight){0};
    for (int a = 0; a < 8 * parts * parts; a++) S[a] = (eight){0};
    for (int64_t j = 0; j < t->d; j++) {
        double lanes[MOST_WIDTH] __attribute__((aligned(64)));
        eight v[4];
        for (int b = 0; b < parts; b++) {
            v[b] = NAME(widened)(V + (j * parts + b) * 8);
            m[b] += t->mean[j] * v[b], v[b] *= s[b];
            *(eight *)(lanes + 8 * b) = t->penalty[j] * v[b];
        }
        STORED(lanes);
        for (int a = 0; a < 8 * parts; a++)
            for (int b = 0; b < parts; b++) S[a * parts + b] += lanes[a] * v[b];
    }
    t->ridge = 0;
    for (int64_t j = 0; j < t->d; j++) {
        eight v[4], near[4];
        for (int b = 0; b < parts; b++) {
            v[b] = NAME(widened)(V + (j * parts + b) * 8);
            near[b] = s[b] * (m[b] - t->mean[j] * v[b]);
        }
        const double level = w[j] + 2 * NAME(dot)(near, v, parts), much = t->penalty[j] * level;
        for (int b = 0; b < parts; b++) p[b] += much * v[b];
        t->ridge += much * level;
    }
}

/* Move the intercept to its best value, and add up the squares of the errors. */
TARGET static void NAME(settle)(columns *t)
{
    const int64_t stride = t->width + 8;
    REAL *error = (REAL *)t->state + t->width;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const double weight = error[i * stride + 1];
        total += weight, sum += weight * error[i * stride];
    }
    t->shift = sum / total, t->squares = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const double e = error[i * stride] - t->shift;
        error[i * stride] = (REAL)e, t->squares += error[i * stride + 1] * e * e;
    }
}

/* Take the step of a column: in its factors, in its rows, and in what the other columns see of it. */
INLINE void NAME(take)(columns *t, int64_t j, const NAME(equations) *of, const int parts)
{
    const int64_t stride = t->width + 8, width = t->width;
    const REAL *x = t->x, *before = t->past_factors;
    REAL *state = t->state, *V = t->factors, *w = t->linear;
    eight *S = (eight *)t->gram, *m = (eight *)t->centre, *p = (eight *)t->pull;
    const eight *s = (const eight *)t->signs, *v = of->v;
    const double weight = t->penalty[j], share = t->mean[j];
    const REAL to_w = (REAL)(w[j] - (of->gw + NAME(dot)(of->h, of->step, parts)) / of->hw);
    const double delta_w = (double)to_w - (double)w[j];
    eight to[4], delta[4], along[4], near[4], signed_v[4];
    for (int b = 0; b < parts; b++) {
        const NAME(octet) rounded = NAME(narrow)(v[b] + of->step[b]);
        *(NAME(octet) *)(V + j * width + 8 * b) = rounded;
        to[b] = NAME(wide)(rounded), delta[b] = to[b] - v[b];
        along[b] = 2 * s[b] * delta[b], signed_v[b] = s[b] * v[b];
        near[b] = s[b] * m[b] - share * signed_v[b];
    }
    const double level = w[j] + 2 * NAME(dot)(near, v, parts);
    w[j] = to_w;
    const double back = NAME(dot)(along, v, parts);
    NAME(octet) change[4], slope[4];
    for (int b = 0; b < parts; b++) change[b] = NAME(narrow)(delta[b]), slope[b] = NAME(narrow)(along[b]);
    /* For `_passes_planes.h`: squares of the step, and products with the step before. */
    const REAL squared = (REAL)(0.5 * NAME(dot)(along, delta, parts));
    REAL cross = 0;
    if (before) {
        eight step_before[4];
        for (int b = 0; b < parts; b++) step_before[b] = NAME(widened)(before + (2 * j + 1) * width + 8 * b);
        cross = (REAL)(0.5 * NAME(dot)(along, step_before, parts));
    }
    for (int64_t e = t->starts[j]; e < t->starts[j + 1]; e++) {
        REAL *row = state + t->rows[e] * stride;
        __builtin_prefetch(state + t->rows[e + COLUMN_NEAR] * stride, 1, 3);
        const REAL value = x[e];
        NAME(octet) grown = {0};
        for (int b = 0; b < parts; b++) {
            const NAME(octet) product = *(const NAME(octet) *)(row + 8 * b);
            grown += slope[b] * product;
            *(NAME(octet) *)(row + 8 * b) = product + value * change[b];
        }
        row[width] += value * ((REAL)delta_w + NAME(total)(grown) - value * (REAL)back);
        row[width + 3] += value * value * squared, row[width + 4] += value * value * cross;
    }
    /* What the other columns see: m, p = sum of weight level v, and S. */
    double lanes[3][MOST_WIDTH] __attribute__((aligned(64)));
    eight sum[4], signed_to[4];
    for (int b = 0; b < parts; b++) {
        sum[b] = (eight){0}, signed_to[b] = s[b] * to[b], m[b] += share * delta[b];
        *(eight *)(lanes[0] + 8 * b) = (2 * share) * delta[b];
        *(eight *)(lanes[1] + 8 * b) = weight * signed_v[b], *(eight *)(lanes[2] + 8 * b) = weight * signed_to[b];
        near[b] = s[b] * m[b] - share * signed_to[b];
    }
    STORED(lanes);
    for (int a = 0; a < 8 * parts; a++)
        for (int b = 0; b < parts; b++) {
            const eight of_others = S[a * parts + b] - lanes[1][a] * signed_v[b];
            sum[b] += lanes[0][a] * of_others;
            S[a * parts + b] = of_others + lanes[2][a] * signed_to[b];
        }
    const double moved = weight * (to_w + 2 * NAME(dot)(near, to, parts));
    for (int b = 0; b < parts; b++) p[b] += s[b] * sum[b] + moved * to[b] - weight * level * v[b];
}

/* Update every column once. `parts` vectors of eight components are known when this is compiled. */
INLINE void NAME(sweep_of)(columns *t, const int parts)
{
    for (int64_t j = 0; j < t->d; j++) {
        if (t->starts[j] == t->starts[j + 1] || t->penalty[j] <= 0) continue;
        NAME(equations) of[2];
        if (parts == 1 && t->apart[j] && t->penalty[j + 1] > 0) { /* neither sees the other in a row */
            NAME(equate)(t, j, of, 1), NAME(equate)(t, j + 1, of + 1, 1);
            NAME(solve)(of, 2, 1);
            NAME(take)(t, j, of, 1), NAME(take)(t, j + 1, of + 1, 1);
            j++;
            continue;
        }
        NAME(equate)(t, j, of, parts);
        NAME(solve)(of, 1, parts);
        NAME(take)(t, j, of, parts);
    }
}

/* Write x'V and the errors of all rows anew. */
INLINE void NAME(evaluate_of)(columns *t, const int parts)
{
    const int64_t stride = t->width + 8, width = t->width;
    const REAL *x = t->x, *V = t->factors, *w = t->linear;
    REAL *state = t->state;
    const eight *s = (const eight *)t->signs;
    for (int64_t i = 0; i < t->n; i++) {
        REAL *row = state + i * stride;
        for (int c = 0; c < 8 * parts; c++) row[c] = 0;
        row[width] = -row[width + 2];
    }
    for (int64_t j = 0; j < t->d; j++) {
        double square = 0;
        NAME(octet) v[4];
        for (int b = 0; b < parts; b++) {
            v[b] = *(const NAME(octet) *)(V + j * width + 8 * b);
            const eight wide = NAME(wide)(v[b]), signed_square = s[b] * wide * wide;
            for (int c = 0; c < 8; c++) square += signed_square[c];
        }
        for (int64_t e = t->starts[j]; e < t->starts[j + 1]; e++) {
            REAL *row = state + t->rows[e] * stride;
            NAME(fetch)(state, t->rows + e, stride);
            for (int b = 0; b < parts; b++) *(NAME(octet) *)(row + 8 * b) += x[e] * v[b];
            row[width] += x[e] * (REAL)((double)w[j] - (double)x[e] * square);
        }
    }
    for (int64_t i = 0; i < t->n; i++) {
        REAL *row = state + i * stride;
        double sum = 0;
        for (int b = 0; b < parts; b++) {
            const eight q = NAME(widened)(row + 8 * b), squares = s[b] * q * q;
            for (int c = 0; c < 8; c++) sum += squares[c];
        }
        row[width] += (REAL)sum;
    }
}

/* Up to eight components stay in registers; more of them are walked by loops that are not unrolled. */
#define OF_PARTS(run)                                                                             \
    TARGET static void NAME(run)(columns * t)                                                     \
    {                                                                                             \
        if (t->width == 8) NAME(run##_of)(t, 1);                                                  \
        else NAME(run##_of)(t, (int)(t->width / 8));                                              \
    }
OF_PARTS(survey)
OF_PARTS(sweep)
OF_PARTS(evaluate)
