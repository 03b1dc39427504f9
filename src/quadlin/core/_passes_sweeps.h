/* Sweeps over the columns of sparse rows; included once per set of instructions.
 *
 * f = b + sum_j x_j w_j + sum_a s_a (T_a^2 - sum_j x_j^2 v_ja^2) / 2 with T = sum_j x_j v_j, the total of a row, is
 * linear in the unknowns theta = (w, v) of one column: theta'q with q = x (1, s (T - x v)). A column solves its
 * K x K system and moves the totals and residuals of its rows, so a sweep takes O(entries K^2).
 * `sweeps.py` says the same in numpy.
 */

/* The lower triangle of the Cholesky factor of G, in place. */
INLINE void NAME(factor_column)(double *G, const int64_t K)
{
    for (int64_t j = 0; j < K; j++) {
        double d = G[j * K + j];
        for (int64_t c = 0; c < j; c++) d -= G[j * K + c] * G[j * K + c];
        d = sqrt(d);
        G[j * K + j] = d;
        for (int64_t i = j + 1; i < K; i++) {
            double s = G[i * K + j];
            for (int64_t c = 0; c < j; c++) s -= G[i * K + c] * G[j * K + c];
            G[i * K + j] = s / d;
        }
    }
}

/* The mean of a column's unknowns, or a draw of them where there are normal numbers z. */
INLINE void NAME(solve_column)(const double *G, const double *h, const double *z, double *solution, const int64_t K)
{
    for (int64_t a = 0; a < K; a++) {
        double s = h[a];
        for (int64_t c = 0; c < a; c++) s -= G[a * K + c] * solution[c];
        solution[a] = s / G[a * K + a];
    }
    if (z)
        for (int64_t a = 0; a < K; a++) solution[a] += z[a];
    for (int64_t a = K - 1; a >= 0; a--) {
        double s = solution[a];
        for (int64_t c = a + 1; c < K; c++) s -= G[c * K + a] * solution[c];
        solution[a] = s / G[a * K + a];
    }
}

/* The covariance of a column's unknowns, from the Cholesky factor of its system. */
INLINE void NAME(invert_column)(const double *G, double *inverse, double *C, const int64_t K)
{
    for (int64_t j = 0; j < K; j++) {
        for (int64_t a = 0; a < j; a++) inverse[a * K + j] = 0;
        inverse[j * K + j] = 1 / G[j * K + j];
        for (int64_t a = j + 1; a < K; a++) {
            double s = 0;
            for (int64_t c = j; c < a; c++) s -= G[a * K + c] * inverse[c * K + j];
            inverse[a * K + j] = s / G[a * K + a];
        }
    }
    for (int64_t a = 0; a < K; a++)
        for (int64_t b = 0; b <= a; b++) {
            double s = 0;
            for (int64_t c = a; c < K; c++) s += inverse[c * K + a] * inverse[c * K + b];
            C[a * K + b] = C[b * K + a] = s;
        }
}

/* What the rows of a column say about its unknowns, summed: sizes are those of k = K - 1 factors. */
typedef struct {
    double g, gw[MOST_SWEPT], gv[MOST_SWEPT * MOST_SWEPT]; /* sums of qq', by w and v */
    double h, hv[MOST_SWEPT];
    double spread[MOST_SWEPT * (MOST_SWEPT + 1) / 2]; /* of x^2 times the covariances of all columns of a row */
    double along[MOST_SWEPT], cubes, fourths; /* sums of x^2 q, x^3 and x^4 */
} NAME(sums);

/* Sum over the rows of column j. Its own covariance is part of those of its rows, and taken off at the end. */
INLINE void NAME(sum_column)(const column_sweep *t, const int64_t j, NAME(sums) *of, const int64_t k)
{
    const double *theta = t->table + j * (k + 1), *v = theta + 1, *signs = t->signs + 1;
    float near[MOST_SWEPT * (MOST_SWEPT + 1) / 2], product[MOST_SWEPT], single[MOST_SWEPT];
    const int64_t P = k * (k + 1) / 2;
    double q[MOST_SWEPT];
    const int64_t last = t->starts[j + 1];
    of->g = of->h = of->cubes = of->fourths = 0;
    for (int64_t a = 0; a < k; a++) of->gw[a] = of->hv[a] = of->along[a] = 0;
    for (int64_t c = 0; c < k * k; c++) of->gv[c] = 0;
    for (int64_t c = 0; c < P; c++) of->spread[c] = 0, near[c] = 0;
    for (int64_t i = t->starts[j], count = 1; i < last; i++, count++) {
        const int64_t r = t->rows[i];
        const double x = t->x ? t->x[i] : 1.0, omega = t->weight ? t->weight[r] : 1.0;
        const double *T = t->total + r * k;
        if (i + NEXT_ROW < last) {
            const int64_t next = t->rows[i + NEXT_ROW];
            __builtin_prefetch(t->residual + next);
            __builtin_prefetch(t->total + next * k);
            if (t->cov) {
                __builtin_prefetch(t->turn + next * k);
                for (int64_t c = 0; c < P; c += 16) __builtin_prefetch(t->spread + next * P + c);
            }
        }
        double s = t->residual[r] + x * theta[0];
        for (int64_t a = 0; a < k; a++) {
            q[a] = x * signs[a] * (T[a] - x * v[a]);
            s += v[a] * q[a];
        }
        of->g += omega * x * x, of->h += omega * x * s;
        for (int64_t a = 0; a < k; a++) of->gw[a] += omega * x * q[a];
        for (int64_t a = 0; a < k; a++) {
            const double along = omega * q[a];
            for (int64_t b = 0; b < k; b++) of->gv[a * k + b] += along * q[b];
        }
        if (!t->cov) {
            for (int64_t a = 0; a < k; a++) of->hv[a] += omega * s * q[a];
            continue;
        }
        const float *S = t->spread + r * P;
        const double *R = t->turn + r * k, x2 = omega * x * x;
        const float much = (float)x2;
        for (int64_t c = 0; c < P; c++) near[c] += much * S[c];
        for (int64_t a = 0; a < k; a++) single[a] = (float)q[a], product[a] = 0;
        for (int64_t a = 0, c = 0; a < k; a++) {
            for (int64_t b = 0; b < a; b++, c++) product[a] += S[c] * single[b], product[b] += S[c] * single[a];
            product[a] += S[c++] * single[a];
        }
        for (int64_t a = 0; a < k; a++) {
            of->hv[a] += omega * (s * q[a] + signs[a] * (x * R[a] - product[a]));
            of->along[a] += x2 * q[a];
        }
        of->cubes += x2 * x, of->fourths += x2 * x * x;
        if (count % 64 == 0 || i + 1 == last) /* single precision is for a few rows */
            for (int64_t c = 0; c < P; c++) of->spread[c] += near[c], near[c] = 0;
    }
}

INLINE void NAME(sweep_with)(const column_sweep *t, const int64_t K)
{
    const int64_t k = K - 1, P = k * K / 2;
    const double *signs = t->signs + 1;
    double G[MOST_SWEPT * MOST_SWEPT], inverse[MOST_SWEPT * MOST_SWEPT], C[MOST_SWEPT * MOST_SWEPT];
    double h[MOST_SWEPT], solution[MOST_SWEPT], turn[MOST_SWEPT], next[MOST_SWEPT], beside[MOST_SWEPT];
    float change[MOST_SWEPT * (MOST_SWEPT + 1) / 2];
    NAME(sums) sums;
    for (int64_t j = t->first; j < t->last; j++) {
        double *theta = t->table + j * K, *cov = t->cov ? t->cov + j * K * K : 0, *v = theta + 1;
        NAME(sum_column)(t, j, &sums, k);
        if (cov)
            for (int64_t a = 0; a < k; a++) {
                const double *of = cov + (a + 1) * K;
                double own = 0, along = 0;
                for (int64_t b = 0; b < k; b++) {
                    own += of[b + 1] * signs[b] * v[b], along += of[b + 1] * sums.along[b];
                    if (b > a) continue; /* the lower triangle is what the system needs */
                    const double near = sums.spread[a * (a + 1) / 2 + b] - sums.fourths * (double)(float)of[b + 1];
                    sums.gv[a * k + b] += signs[a] * signs[b] * near;
                }
                turn[a] = own;
                sums.hv[a] += signs[a] * (along - own * sums.fourths + of[0] * sums.cubes);
            }
        G[0] = sums.g, h[0] = sums.h;
        for (int64_t a = 0; a < k; a++) {
            G[(a + 1) * K] = sums.gw[a], h[a + 1] = sums.hv[a];
            memcpy(G + (a + 1) * K + 1, sums.gv + a * k, k * sizeof(double));
        }
        for (int64_t a = 0; a < K; a++) {
            h[a] = t->noise * h[a] + t->precision[a] * t->mean[a] + (t->pull ? t->pull[j * K + a] : 0);
            for (int64_t b = 0; b <= a; b++)
                G[a * K + b] = t->noise * G[a * K + b] + (t->prior ? t->prior[(j * K + a) * K + b] : 0);
            G[a * K + a] += t->precision[a];
        }
        NAME(factor_column)(G, K);
        NAME(solve_column)(G, h, t->z ? t->z + j * K : 0, solution, K);
        if (cov) {
            NAME(invert_column)(G, inverse, C, K);
            for (int64_t a = 0; a < k; a++) {
                double own = 0;
                for (int64_t b = 0; b < k; b++) {
                    own += C[(a + 1) * K + b + 1] * signs[b] * solution[b + 1];
                    if (b <= a) change[a * (a + 1) / 2 + b] = (float)C[(a + 1) * K + b + 1] - (float)cov[(a + 1) * K + b + 1];
                }
                next[a] = own - turn[a], beside[a] = C[(a + 1) * K] - cov[(a + 1) * K];
            }
            memcpy(cov, C, K * K * sizeof(double));
        }
        for (int64_t i = t->starts[j]; i < t->starts[j + 1]; i++) {
            const int64_t r = t->rows[i];
            const double x = t->x ? t->x[i] : 1.0;
            double *T = t->total + r * k, moved = x * (solution[0] - theta[0]);
            for (int64_t a = 0; a < k; a++) {
                const double step = x * (solution[a + 1] - v[a]);
                moved += step * signs[a] * (T[a] - x * v[a]);
                T[a] += step;
            }
            t->residual[r] -= moved;
            if (!cov) continue;
            float *S = t->spread + r * P;
            double *R = t->turn + r * k;
            const float x2 = (float)(x * x);
            for (int64_t c = 0; c < P; c++) S[c] += x2 * change[c];
            for (int64_t a = 0; a < k; a++) R[a] += x * x * (x * next[a] - beside[a]);
        }
        memcpy(theta, solution, K * sizeof(double));
    }
}

/* Add to the variance of each row what the columns of a group contribute, but for the squares of its spread. */
TARGET static void NAME(spread_columns)(const column_sweep *t)
{
    const int64_t K = t->K, k = K - 1;
    const double *signs = t->signs;
    double q[MOST_SWEPT];
    for (int64_t j = t->first; j < t->last; j++) {
        const double *theta = t->table + j * K, *C = t->cov + j * K * K;
        double own = 0;
        for (int64_t a = 1; a < K; a++)
            for (int64_t b = 1; b < K; b++) own += signs[a] * signs[b] * C[a * K + b] * C[a * K + b];
        for (int64_t i = t->starts[j]; i < t->starts[j + 1]; i++) {
            const int64_t r = t->rows[i];
            const double x = t->x ? t->x[i] : 1.0, *T = t->total + r * k;
            double sum = -x * x * x * x * own / 2;
            q[0] = x;
            for (int64_t a = 1; a < K; a++) q[a] = x * signs[a] * (T[a - 1] - x * theta[a]);
            for (int64_t a = 0; a < K; a++) {
                double along = 0;
                for (int64_t b = 0; b < K; b++) along += C[a * K + b] * q[b];
                sum += along * q[a];
            }
            t->variance[r] += sum;
        }
    }
}

TARGET static void NAME(sweep_columns)(const column_sweep *t)
{
    if (t->K == 9) NAME(sweep_with)(t, 9); /* rank 8, the default: its loops are unrolled */
    else NAME(sweep_with)(t, t->K);
}
