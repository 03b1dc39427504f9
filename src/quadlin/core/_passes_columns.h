/* Sweeps over the columns of sparse rows; included once per kind of number and set of instructions.
 *
 * f = c + x'w + sum_a s_a ((x'v_a)^2 - sum_j x_j^2 v_ja^2) is linear in (w_j, v_j): of each column they
 * are solved for by the rows that have it, whose errors and x'V then change at once.
 */

typedef REAL NAME(octet) __attribute__((vector_size(8 * SIZE), aligned(SIZE)));

INLINE eight NAME(widened)(const REAL *at) { return __builtin_convertvector(*(const NAME(octet) *)at, eight); }

/* Solve the equations of `size` unknowns whose lower triangle is L, in place of b; L is lost. */
TARGET static __attribute__((noinline)) void NAME(solve)(double L[MOST_WIDTH + 1][MOST_WIDTH + 1], double *b, int size)
{
    for (int a = 0; a < size; a++) {
        for (int c = 0; c < a; c++) {
            double sum = L[a][c];
            for (int l = 0; l < c; l++) sum -= L[a][l] * L[c][l];
            L[a][c] = sum * L[c][c];
        }
        double sum = L[a][a], rest = b[a], least = 1e-12 * L[a][a];
        for (int l = 0; l < a; l++) sum -= L[a][l] * L[a][l], rest -= L[a][l] * b[l];
        L[a][a] = sum > least && sum > 0 ? 1 / sqrt(sum) : 0; /* nothing tells this unknown from others */
        b[a] = rest * L[a][a];
    }
    for (int a = size - 1; a >= 0; a--) {
        double rest = b[a];
        for (int l = a + 1; l < size; l++) rest -= L[l][a] * b[l];
        b[a] = rest * L[a][a];
    }
}

/* Update every column once. `parts` vectors of eight components are known when this is compiled. */
INLINE void NAME(sweep_of)(columns *t, const int parts)
{
    const int64_t stride = t->width + 8, width = t->width, k = t->k;
    const REAL *x = t->x;
    REAL *state = t->state, *V = t->factors, *w = t->linear;
    eight *A = (eight *)t->gram, *m = (eight *)t->centre, *p = (eight *)t->pull;
    const eight *s = (const eight *)t->signs;
    for (int64_t j = 0; j < t->d; j++) {
        const int64_t first = t->starts[j], last = t->starts[j + 1];
        if (first == last || t->penalty[j] <= 0) continue;
        eight v[4], H[8 * 4][4], h[4], G[4], near[4], beside[4];
        double hw = 0, gw = 0, level = w[j];
        const double weight = t->penalty[j], share = t->mean[j], ridge = t->first * weight;
        for (int b = 0; b < parts; b++) v[b] = NAME(widened)(V + j * width + 8 * b), h[b] = G[b] = (eight){0};
        for (int a = 0; a < 8 * parts; a++)
            for (int b = 0; b < parts; b++) H[a][b] = (eight){0};
        for (int64_t e = first; e < last; e++) {
            const REAL *row = state + t->rows[e] * stride;
            __builtin_prefetch(state + t->rows[e + AHEAD] * stride, 1, 3);
            const double value = x[e], omega = (double)row[width + 1] * value, square = omega * value;
            const double error = omega * (double)row[width];
            eight g[4], scaled[4];
            for (int b = 0; b < parts; b++) {
                g[b] = s[b] * (NAME(widened)(row + 8 * b) - value * v[b]);
                scaled[b] = square * g[b];
            }
            for (int a = 0; a < 8 * parts; a++)
                for (int b = 0; b < parts; b++) H[a][b] += g[a / 8][a % 8] * scaled[b];
            for (int b = 0; b < parts; b++) h[b] += scaled[b], G[b] += error * g[b];
            hw += square, gw += error;
        }
        /* f grows by 2g per v. The ridges: first |level|^2 with level = w + 2 v's(m - share v), which
         * moves with the centre m for all other columns, and second tr(sAsA). */
        for (int b = 0; b < parts; b++) {
            near[b] = s[b] * (m[b] - share * v[b]);
            for (int c = 0; c < 8; c++) level += 2 * near[b][c] * v[b][c];
        }
        for (int b = 0; b < parts; b++) {
            beside[b] = p[b] - weight * level * v[b];
            h[b] = 2 * (h[b] + ridge * near[b]);
            G[b] = 2 * (G[b] + ridge * level * near[b] + t->first * share * s[b] * beside[b]);
        }
        hw += ridge, gw += ridge * level;
        double L[MOST_WIDTH + 1][MOST_WIDTH + 1], step[MOST_WIDTH + 1];
        for (int a = 0; a < k; a++) {
            double along = 0;
            const double sign = s[a / 8][a % 8], own = v[a / 8][a % 8], close = near[a / 8][a % 8];
            for (int b = 0; b < parts; b++) {
                const eight of_all = sign * s[b] * A[a * parts + b];
                const eight of_others = of_all - weight * sign * own * s[b] * v[b];
                H[a][b] += ridge * close * near[b] + t->second * weight * of_all + t->first * share * share * of_others;
                for (int c = 0; c < 8; c++) along += of_all[c] * v[b][c];
                for (int c = 0; c < 8 && 8 * b + c <= a; c++) L[a][8 * b + c] = 4 * H[a][b][c];
            }
            step[a] = -(G[a / 8][a % 8] + 4 * t->second * weight * along);
            L[k][a] = h[a / 8][a % 8];
        }
        L[k][k] = hw, step[k] = -gw;
        NAME(solve)(L, step, (int)k + 1);
        eight to[4], delta[4];
        const REAL to_w = (REAL)(w[j] + step[k]);
        const double delta_w = (double)to_w - (double)w[j];
        for (int b = 0; b < parts; b++) {
            eight wanted = (eight){0};
            for (int c = 0; c < 8 && 8 * b + c < k; c++) wanted[c] = step[8 * b + c];
            const NAME(octet) rounded = __builtin_convertvector(v[b] + wanted, NAME(octet));
            *(NAME(octet) *)(V + j * width + 8 * b) = rounded;
            to[b] = __builtin_convertvector(rounded, eight), delta[b] = to[b] - v[b];
        }
        w[j] = to_w;
        for (int64_t e = first; e < last; e++) {
            REAL *row = state + t->rows[e] * stride;
            __builtin_prefetch(state + t->rows[e + AHEAD] * stride, 1, 3);
            const double value = x[e];
            double grown = 0;
            for (int b = 0; b < parts; b++) {
                const eight q = NAME(widened)(row + 8 * b), along = s[b] * delta[b] * (q - value * v[b]);
                for (int c = 0; c < 8; c++) grown += along[c];
                *(NAME(octet) *)(row + 8 * b) = __builtin_convertvector(q + value * delta[b], NAME(octet));
            }
            row[width] += (REAL)(value * (delta_w + 2 * grown));
        }
        /* What the other columns see: m, p = sum of weight level v, and A = sum of weight v v'. */
        double moved = to_w;
        eight turned[4];
        for (int b = 0; b < parts; b++) {
            turned[b] = share * s[b] * delta[b];
            m[b] += share * delta[b];
        }
        for (int b = 0; b < parts; b++)
            for (int c = 0; c < 8; c++) moved += 2 * s[b][c] * (m[b][c] - share * to[b][c]) * to[b][c];
        for (int a = 0; a < 8 * parts; a++) {
            double sum = 0;
            for (int b = 0; b < parts; b++) {
                const eight of_others = A[a * parts + b] - weight * v[a / 8][a % 8] * v[b];
                for (int c = 0; c < 8; c++) sum += of_others[c] * turned[b][c];
                A[a * parts + b] = of_others + weight * to[a / 8][a % 8] * to[b];
            }
            beside[a / 8][a % 8] += 2 * sum;
        }
        for (int b = 0; b < parts; b++) p[b] = beside[b] + weight * moved * to[b];
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
            const eight wide = __builtin_convertvector(v[b], eight), signed_square = s[b] * wide * wide;
            for (int c = 0; c < 8; c++) square += signed_square[c];
        }
        for (int64_t e = t->starts[j]; e < t->starts[j + 1]; e++) {
            REAL *row = state + t->rows[e] * stride;
            __builtin_prefetch(state + t->rows[e + AHEAD] * stride, 1, 3);
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
OF_PARTS(sweep)
OF_PARTS(evaluate)
#undef OF_PARTS
