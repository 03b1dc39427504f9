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

INLINE void NAME(sweep_with)(const column_sweep *t, const int64_t K)
{
    const int64_t k = K - 1, P = K * (K + 1) / 2;
    const double *signs = t->signs; /* (K,), zero for w */
    double G[MOST_SWEPT * MOST_SWEPT], inverse[MOST_SWEPT * MOST_SWEPT], C[MOST_SWEPT * MOST_SWEPT];
    double h[MOST_SWEPT], q[MOST_SWEPT], solution[MOST_SWEPT], turn[MOST_SWEPT], next[MOST_SWEPT];
    float change[MOST_SWEPT * (MOST_SWEPT + 1) / 2], old[MOST_SWEPT * (MOST_SWEPT + 1) / 2];
    for (int64_t j = t->first; j < t->last; j++) {
        double *theta = t->table + j * K, *cov = t->cov ? t->cov + j * K * K : 0;
        for (int64_t a = 0; a < K; a++) h[a] = 0;
        for (int64_t a = 0; a < K * K; a++) G[a] = 0;
        if (cov) {
            int64_t p = 0;
            for (int64_t a = 0; a < K; a++) {
                double s = 0;
                for (int64_t b = 1; b < K; b++) s += cov[a * K + b] * signs[b] * theta[b];
                turn[a] = s;
                for (int64_t b = 0; b <= a; b++) old[p++] = (float)cov[a * K + b];
            }
        }
        for (int64_t i = t->starts[j]; i < t->starts[j + 1]; i++) {
            const int64_t r = t->rows[i];
            const double x = t->x ? t->x[i] : 1.0, omega = t->weight ? t->weight[r] : 1.0;
            const double *T = t->total + r * k;
            double s = t->residual[r] + x * theta[0];
            q[0] = x;
            for (int64_t a = 1; a < K; a++) {
                q[a] = x * signs[a] * (T[a - 1] - x * theta[a]);
                s += theta[a] * q[a];
            }
            if (!cov) {
                for (int64_t a = 0; a < K; a++) {
                    const double along = omega * q[a];
                    h[a] += s * along;
                    for (int64_t b = 0; b < K; b++) G[a * K + b] += along * q[b];
                }
                continue;
            }
            const float *S = t->spread + r * P;
            const double *R = t->turn + r * K, x2 = x * x, x3 = x2 * x;
            int64_t p = 0;
            for (int64_t a = 0; a < K; a++) {
                double sum = s * q[a] + x * signs[a] * (R[a] - x3 * turn[a]);
                for (int64_t b = 0; b < a; b++, p++) {
                    const double c = S[p] - x2 * old[p];
                    G[a * K + b] += omega * (q[a] * q[b] + x2 * signs[a] * signs[b] * c);
                    sum -= signs[a] * c * q[b];
                    h[b] -= omega * signs[b] * c * q[a];
                }
                const double c = S[p] - x2 * old[p];
                p++;
                G[a * K + a] += omega * (q[a] * q[a] + x2 * signs[a] * signs[a] * c);
                h[a] += omega * (sum - signs[a] * c * q[a]);
            }
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
            int64_t p = 0;
            NAME(invert_column)(G, inverse, C, K);
            for (int64_t a = 0; a < K; a++) {
                double s = 0;
                for (int64_t b = 1; b < K; b++) s += C[a * K + b] * signs[b] * solution[b];
                next[a] = s - turn[a];
                for (int64_t b = 0; b <= a; b++, p++) change[p] = (float)C[a * K + b] - old[p];
            }
            memcpy(cov, C, K * K * sizeof(double));
        }
        for (int64_t i = t->starts[j]; i < t->starts[j + 1]; i++) {
            const int64_t r = t->rows[i];
            const double x = t->x ? t->x[i] : 1.0;
            double *T = t->total + r * k, moved = x * (solution[0] - theta[0]);
            for (int64_t a = 1; a < K; a++) {
                const double step = x * (solution[a] - theta[a]);
                moved += step * signs[a] * (T[a - 1] - x * theta[a]);
                T[a - 1] += step;
            }
            t->residual[r] -= moved;
            if (!cov) continue;
            float *S = t->spread + r * P;
            double *R = t->turn + r * K;
            const float x2 = (float)(x * x);
            for (int64_t p = 0; p < P; p++) S[p] += x2 * change[p];
            for (int64_t a = 0; a < K; a++) R[a] += x * x * x * next[a];
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
