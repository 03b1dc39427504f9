/* Sweeps over the columns of sparse rows; included once per kind of number and set of instructions.
 *
 * f = c + x'w + sum_a s_a ((x'v_a)^2 - sum_j x_j^2 v_ja^2) is linear in (w_j, v_j): of each column they
 * are solved for by the rows that have it, whose errors and x'V then change at once.
 */

typedef REAL NAME(octet) __attribute__((vector_size(8 * SIZE), aligned(SIZE)));

/* GCC 12 converts eight numbers in halves where one instruction does. */
INLINE eight NAME(wide)(NAME(octet) v)
{
#if defined(IN_512) && SIZE == 4
    return (eight)_mm512_cvtps_pd((__m256)v);
#else
    return __builtin_convertvector(v, eight);
#endif
}

INLINE NAME(octet) NAME(narrow)(eight v)
{
#if defined(IN_512) && SIZE == 4
    return (NAME(octet))_mm512_cvtpd_ps((__m512d)v);
#else
    return __builtin_convertvector(v, NAME(octet));
#endif
}

INLINE eight NAME(widened)(const REAL *at) { return NAME(wide)(*(const NAME(octet) *)at); }

/* Solve the equations of `parts` vectors of eight unknowns in place of b; the symmetric H is lost.
 *
 * Unknown by unknown, as in the sweep of statisticians: afterwards lane a of a later row, and of b, is
 * what a is worth there. Lanes of rows that are through are not needed again.
 */
INLINE void NAME(solve)(eight H[][4], eight *b, const int parts)
{
    double l[MOST_WIDTH] __attribute__((aligned(64))), least[MOST_WIDTH];
    for (int a = 0; a < 8 * parts; a++) least[a] = (SIZE == 4 ? 1e-6 : 1e-12) * H[a][a / 8][a % 8];
#pragma GCC unroll 8
    for (int a = 0; a < 8 * parts; a++) {
        const double pivot = H[a][a / 8][a % 8], at = b[a / 8][a % 8];
        const double inverse = pivot > least[a] && pivot > 0 ? 1 / pivot : 0; /* or others tell the same */
        H[a][a / 8][a % 8] = -1;
        for (int c = 0; c < parts; c++) {
            eight keep = {1, 1, 1, 1, 1, 1, 1, 1};
            if (c == a / 8) keep[a % 8] = 0;
            const eight along = inverse * H[a][c];
            *(eight *)(l + 8 * c) = along;
            b[c] = b[c] * keep - along * at;
        }
        STORED(l);
        for (int row = a + 1; row < 8 * parts; row++) {
            H[row][a / 8][a % 8] = 0;
            for (int c = 0; c < parts; c++) H[row][c] -= l[row] * H[a][c];
        }
    }
}

INLINE REAL NAME(total)(NAME(octet) v)
{
    typedef REAL half __attribute__((vector_size(4 * SIZE)));
    const half low = {v[0], v[1], v[2], v[3]}, high = {v[4], v[5], v[6], v[7]}, sum = low + high;
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

INLINE double NAME(dot)(const eight *a, const eight *b, const int parts)
{
    eight sum = a[0] * b[0];
    for (int c = 1; c < parts; c++) sum += a[c] * b[c];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* Add up what rows say of the column from `first` to `last`: g = s (x'V - x v), and of e = the error
 * H = sum of weight x^2 g g', h = sum of weight x^2 g, G = sum of weight x e g, and the same of 1. */
INLINE void NAME(add_up)(
    const columns *t, int64_t first, int64_t last, const NAME(octet) *v, eight H[][4], eight *h, eight *G,
    double *hw, double *gw, const int parts)
{
    const int64_t stride = t->width + 8, width = t->width;
    const REAL *x = t->x, *state = t->state;
    REAL g[BATCH][MOST_WIDTH] __attribute__((aligned(64))), scaled[BATCH][MOST_WIDTH] __attribute__((aligned(64)));
    NAME(octet) s[4];
    for (int b = 0; b < parts; b++) s[b] = NAME(narrow)(((const eight *)t->signs)[b]);
    while (first < last) {
        const int count = last - first < BATCH ? (int)(last - first) : BATCH;
        NAME(octet) much_of[4], pull_of[4];
        REAL squares = 0, errors = 0;
        for (int b = 0; b < parts; b++) much_of[b] = pull_of[b] = (NAME(octet)){0};
        for (int i = 0; i < count; i++) {
            const REAL *row = state + t->rows[first + i] * stride, value = x[first + i];
            __builtin_prefetch(state + t->rows[first + i + COLUMN_AHEAD] * stride, 1, 3);
            const REAL omega = row[width + 1] * value, square = omega * value;
            const REAL error = omega * row[width];
            for (int b = 0; b < parts; b++) {
                const NAME(octet) beside = s[b] * (*(const NAME(octet) *)(row + 8 * b) - value * v[b]);
                const NAME(octet) much = square * beside;
                *(NAME(octet) *)(g[i] + 8 * b) = beside, *(NAME(octet) *)(scaled[i] + 8 * b) = much;
                much_of[b] += much, pull_of[b] += error * beside;
            }
            squares += square, errors += error;
        }
        for (int b = 0; b < parts; b++) h[b] += NAME(wide)(much_of[b]), G[b] += NAME(wide)(pull_of[b]);
        *hw += squares, *gw += errors;
        for (int from = 0; from < 8 * parts; from += 8) /* eight rows of H stay in registers */
            for (int b = 0; b < parts; b++) {
                NAME(octet) sum[8];
                for (int a = 0; a < 8; a++) sum[a] = (NAME(octet)){0};
                for (int i = 0; i < count; i++) {
                    const NAME(octet) much = *(const NAME(octet) *)(scaled[i] + 8 * b);
                    for (int a = 0; a < 8; a++) sum[a] += g[i][from + a] * much;
                }
                for (int a = 0; a < 8; a++) H[from + a][b] += NAME(wide)(sum[a]);
            }
        first += count;
    }
}

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

/* Update every column once. `parts` vectors of eight components are known when this is compiled. */
INLINE void NAME(sweep_of)(columns *t, const int parts)
{
    const int64_t stride = t->width + 8, width = t->width;
    const REAL *x = t->x;
    REAL *state = t->state, *V = t->factors, *w = t->linear;
    const REAL *before = t->past_factors;
    eight *S = (eight *)t->gram, *m = (eight *)t->centre, *p = (eight *)t->pull;
    const eight *s = (const eight *)t->signs;
    for (int64_t j = 0; j < t->d; j++) {
        const int64_t first = t->starts[j], last = t->starts[j + 1];
        if (first == last || t->penalty[j] <= 0) continue;
        NAME(octet) at[4];
        eight v[4], H[8 * 4][4], h[4], G[4], near[4], beside[4], signed_v[4];
        double hw = 0, gw = 0;
        const double weight = t->penalty[j], share = t->mean[j], ridge = t->first * weight;
        for (int b = 0; b < parts; b++) {
            at[b] = *(const NAME(octet) *)(V + j * width + 8 * b);
            v[b] = NAME(wide)(at[b]), signed_v[b] = s[b] * v[b];
            near[b] = s[b] * m[b] - share * signed_v[b];
            h[b] = G[b] = (eight){0};
        }
        for (int a = 0; a < 8 * parts; a++)
            for (int b = 0; b < parts; b++) H[a][b] = (eight){0};
        NAME(add_up)(t, first, last, at, H, h, G, &hw, &gw, parts);
        /* f grows by 2g per v. The ridges: first |level|^2 with level = w + 2 v's(m - share v), which
         * moves with the centre m for all other columns, and second tr(SS), S = sum of weight sv sv'. */
        const double level = w[j] + 2 * NAME(dot)(near, v, parts);
        hw += ridge, gw += ridge * level;
        const double others = 4 * t->first * share * share, of_all = 4 * t->second * weight + others;
        double lanes[4][MOST_WIDTH] __attribute__((aligned(64))); /* numbers by which rows of S and H go */
        eight step[4];
        for (int b = 0; b < parts; b++) {
            beside[b] = p[b] - weight * level * v[b];
            h[b] = 2 * (h[b] + ridge * near[b]);
            step[b] = (gw / hw) * h[b] - 2 * (G[b] + ridge * level * near[b] + t->first * share * s[b] * beside[b]);
            *(eight *)(lanes[0] + 8 * b) = (4 * ridge) * near[b];
            *(eight *)(lanes[1] + 8 * b) = (others * weight) * signed_v[b];
            *(eight *)(lanes[2] + 8 * b) = h[b] / hw;
            *(eight *)(lanes[3] + 8 * b) = (4 * t->second * weight) * v[b];
        }
        STORED(lanes);
        for (int a = 0; a < 8 * parts; a++)
            for (int b = 0; b < parts; b++) {
                const eight row = S[a * parts + b];
                step[b] -= lanes[3][a] * row;
                H[a][b] = 4 * H[a][b] + lanes[0][a] * near[b] + of_all * row;
                H[a][b] -= lanes[1][a] * signed_v[b] + lanes[2][a] * h[b];
            }
        NAME(solve)(H, step, parts);
        const REAL to_w = (REAL)(w[j] - (gw + NAME(dot)(h, step, parts)) / hw);
        const double delta_w = (double)to_w - (double)w[j];
        eight to[4], delta[4], along[4];
        for (int b = 0; b < parts; b++) {
            const NAME(octet) rounded = NAME(narrow)(v[b] + step[b]);
            *(NAME(octet) *)(V + j * width + 8 * b) = rounded;
            to[b] = NAME(wide)(rounded), delta[b] = to[b] - v[b];
            along[b] = 2 * s[b] * delta[b];
        }
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
        for (int64_t e = first; e < last; e++) {
            REAL *row = state + t->rows[e] * stride;
            __builtin_prefetch(state + t->rows[e + COLUMN_AHEAD] * stride, 1, 3);
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
        for (int b = 0; b < parts; b++) p[b] = beside[b] + s[b] * sum[b] + moved * to[b];
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
            __builtin_prefetch(state + t->rows[e + COLUMN_AHEAD] * stride, 1, 3);
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
