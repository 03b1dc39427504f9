/* The covariances of the coefficients of each column of sparse rows; included after `_passes_columns.h`.
 *
 * At a model with factors E, row i is moved by phi'(w_j, h_j) of column j, where phi = z (1, 2(p - z e)), z = x - mean,
 * p = E'z and e is row j of E. In a group that every row has, phi = x (1, 2(p - z e)): its mean is no part of the model.
 * Rows without an entry have z = -mean, and phi is about -mean (1, 2p) there. Given what the other columns l leave
 * open in its rows, a column has
 *
 *     S_j^-1 = ridge + sum_i phi phi' / around_ij, around_ij = 1 / weight_i + sum of c_il over l other than j,
 *     c_il = phi' S_l phi / (1 - phi' S_l phi / around_il)
 *
 * where c_il leaves out what row i itself says about column l.
 */

/* Entries of a column, eight at a time: phi, and what is known around the column in each row. */
typedef struct {
    eight phi[MOST_UNKNOWNS], q[MOST_UNKNOWNS]; /* q = (1, 2p) */
    eight inverse; /* 1 / around; 0 for rows without weight, and beyond the last entry */
    eight whole; /* 1 / (1 / weight + sum_l c_il), with this column among the l */
    int count;
} NAME(entries);

INLINE void NAME(take_entries)(const columns *t, int64_t j, int64_t first, NAME(entries) *of)
{
    const int64_t stride = t->width + 8, width = t->width, k = t->k;
    const REAL *state = t->state, *x = t->x, *beside = t->beside, *e = (const REAL *)t->factors + j * width;
    double lanes[MOST_UNKNOWNS][8] __attribute__((aligned(64))), q[MOST_UNKNOWNS][8] __attribute__((aligned(64)));
    double inverse[8] __attribute__((aligned(64))) = {0}, whole[8] __attribute__((aligned(64))) = {0};
    of->count = t->starts[j + 1] - first < 8 ? (int)(t->starts[j + 1] - first) : 8;
    for (int i = 0; i < of->count; i++) {
        const REAL *row = state + t->rows[first + i] * stride;
        NAME(fetch)(state, t->rows + first + i, stride);
        const double value = x[first + i], off = value - t->mean[j], weight = row[width + 1];
        const double others = (double)row[width + 3] - (double)beside[first + i];
        const double size = t->whole[j] ? value : off;
        lanes[0][i] = size, q[0][i] = 1;
        for (int64_t a = 0; a < k; a++) {
            const double p = row[a] - t->centre[a];
            lanes[1 + a][i] = 2 * size * (p - off * e[a]), q[1 + a][i] = 2 * p;
        }
        if (weight > 0) {
            inverse[i] = 1 / (1 / weight + (others > 0 ? others : 0));
            whole[i] = 1 / (1 / weight + row[width + 3]);
        }
    }
    for (int i = of->count; i < 8; i++)
        for (int64_t a = 0; a <= k; a++) lanes[a][i] = q[a][i] = 0;
    for (int64_t a = 0; a <= k; a++) of->phi[a] = *(eight *)lanes[a], of->q[a] = *(eight *)q[a];
    of->inverse = *(eight *)inverse, of->whole = *(eight *)whole;
}

INLINE double NAME(lanes_of)(eight v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

/* L^-1, for the L L' that the lower triangle of P is; a pivot of nothing but rounding has no spread. */
INLINE void NAME(inverse_root)(double P[][MOST_UNKNOWNS], int64_t size)
{
    for (int64_t a = 0; a < size; a++) {
        const double before = P[a][a];
        for (int64_t b = 0; b < a; b++) P[a][a] -= P[a][b] * P[a][b];
        const double inverse = P[a][a] > 1e-12 * before ? 1 / sqrt(P[a][a]) : 0;
        P[a][a] = inverse;
        for (int64_t c = a + 1; c < size; c++) {
            double sum = P[c][a];
            for (int64_t b = 0; b < a; b++) sum -= P[c][b] * P[a][b];
            P[c][a] = sum * inverse;
        }
    }
    for (int64_t b = 0; b < size; b++)
        for (int64_t a = b + 1; a < size; a++) {
            double sum = P[a][b] * P[b][b];
            for (int64_t c = b + 1; c < a; c++) sum += P[a][c] * P[c][b];
            P[a][b] = -sum * P[a][a];
        }
}

/* The precision of a column: what the rows say, less what they say of the intercept, and the ridge.
 * `middle` becomes the mean of phi over all rows, which the intercept takes; returns 1 / their weight. */
INLINE double NAME(precision)(const columns *t, int64_t j, double P[][MOST_UNKNOWNS], double *middle)
{
    const int64_t size = t->k + 1, width = t->width;
    eight sums[MOST_UNKNOWNS * (MOST_UNKNOWNS + 1) / 2], means[MOST_UNKNOWNS], near = {0};
    const double mean = t->whole[j] || t->begins ? 0 : t->mean[j], *all = t->all;
    double total = all[0];
    for (int64_t c = 0; c < size * (size + 1) / 2; c++) sums[c] = (eight){0};
    for (int64_t a = 0; a < size; a++) means[a] = (eight){0};
    for (int64_t first = t->starts[j]; first < t->starts[j + 1] && !t->begins; first += 8) {
        NAME(entries) of;
        NAME(take_entries)(t, j, first, &of);
        near += of.inverse - of.whole;
        for (int64_t a = 0, c = 0; a < size; a++) {
            const eight scaled = of.inverse * of.phi[a], absent = mean * of.whole * of.q[a];
            means[a] += scaled + absent;
            for (int64_t b = 0; b <= a; b++, c++) sums[c] += scaled * of.phi[b] - mean * absent * of.q[b];
        }
    }
    total += NAME(lanes_of)(near);
    const double centring = t->whole[j] || t->begins ? 0 : 1 / total;
    double pull[MOST_UNKNOWNS];
    for (int64_t a = 0; a < size; a++) {
        pull[a] = NAME(lanes_of)(means[a]) - mean * all[a * (a + 1) / 2];
        middle[a] = centring * pull[a];
    }
    for (int64_t a = 0, c = 0; a < size; a++)
        for (int64_t b = 0; b <= a; b++, c++) {
            P[a][b] = NAME(lanes_of)(sums[c]) + mean * mean * all[c] - middle[a] * pull[b];
            if (b) P[a][b] += 4 * t->second * t->penalty[j] * t->gram[(a - 1) * width + b - 1];
        }
    P[0][0] += t->first * t->penalty[j];
    return centring;
}

/* Update the covariance of every column once, from the most frequent to the rarest one. */
TARGET static void NAME(spread)(columns *t)
{
    const int64_t size = t->k + 1, stride = t->width + 8, width = t->width;
    REAL *state = t->state, *beside = t->beside, *sum = state + width + 3;
    for (int64_t j = t->d - 1; j >= 0; j--) {
        if (t->starts[j] == t->starts[j + 1] || t->penalty[j] <= 0) continue;
        double P[MOST_UNKNOWNS][MOST_UNKNOWNS], middle[MOST_UNKNOWNS];
        const double centring = NAME(precision)(t, j, P, middle);
        NAME(inverse_root)(P, size);
        for (int64_t first = t->starts[j]; first < t->starts[j + 1]; first += 8) {
            NAME(entries) of;
            NAME(take_entries)(t, j, first, &of);
            eight square = {0};
            for (int64_t a = 0; a < size; a++) {
                eight along = {0};
                for (int64_t b = 0; b <= a; b++) along += P[a][b] * (of.phi[b] - middle[b]);
                square += along * along;
            }
            for (int i = 0; i < of.count; i++) { /* without the row, also in the mean of phi */
                const double others = 1 - centring * of.inverse[i];
                const double own = t->begins || others < 1e-9 ? 0 : square[i] * of.inverse[i] / others;
                const REAL now = (REAL)(square[i] / (own < 1 - 1e-9 ? 1 - own : 1e-9));
                sum[t->rows[first + i] * stride] += now - beside[first + i], beside[first + i] = now;
            }
        }
        REAL *S = (REAL *)t->spread + j * (size * (size + 1) / 2);
        for (int64_t a = 0; a < size; a++)
            for (int64_t b = 0; b <= a; b++, S++) {
                double product = 0;
                for (int64_t c = a; c < size; c++) product += P[c][a] * P[c][b];
                *S = (REAL)product;
            }
    }
    /* What was added and taken away has its rounding. */
    for (int64_t i = 0; i < t->n; i++) sum[i * stride] = 0;
    for (int64_t e = 0; e < t->starts[t->d]; e++) {
        __builtin_prefetch(sum + t->rows[e + COLUMN_AHEAD] * stride, 1, 3);
        sum[t->rows[e] * stride] += beside[e];
    }
}
