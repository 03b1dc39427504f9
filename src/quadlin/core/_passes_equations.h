/* The equations of one column of sparse rows; included before `_passes_columns.h`.
 *
 * f = c + x'w + sum_a s_a ((x'v_a)^2 - sum_j x_j^2 v_ja^2) is linear in (w_j, v_j): the rows that have column j
 * say what these should be.
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

/* The equations of a column, what they were made of, and their solution. */
typedef struct {
    eight H[8 * 4][4], h[4], step[4], v[4];
    double hw, gw;
} NAME(equations);

/* Solve for the steps of one column or of two; H is lost.
 *
 * Unknown by unknown, as in the sweep of statisticians: afterwards lane a of a later row, and of b, is
 * what a is worth there. Lanes of rows that are through are not needed again. Two columns at a time
 * take little longer than one: each unknown waits for the division of the last.
 */
INLINE void NAME(solve)(NAME(equations) *of, const int count, const int parts)
{
    double l[2][MOST_WIDTH] __attribute__((aligned(64))), least[2][MOST_WIDTH];
    for (int i = 0; i < count; i++)
        for (int a = 0; a < 8 * parts; a++) least[i][a] = (SIZE == 4 ? 1e-6 : 1e-12) * of[i].H[a][a / 8][a % 8];
#pragma GCC unroll 8
    for (int a = 0; a < 8 * parts; a++) {
#pragma GCC unroll 2
        for (int i = 0; i < count; i++) {
            eight (*H)[4] = of[i].H, *b = of[i].step;
            const double pivot = H[a][a / 8][a % 8], at = b[a / 8][a % 8];
            const double inverse = pivot > least[i][a] && pivot > 0 ? 1 / pivot : 0; /* or others tell the same */
            H[a][a / 8][a % 8] = -1;
            for (int c = 0; c < parts; c++) {
                eight keep = {1, 1, 1, 1, 1, 1, 1, 1};
                if (c == a / 8) keep[a % 8] = 0;
                const eight along = inverse * H[a][c];
                *(eight *)(l[i] + 8 * c) = along;
                b[c] = b[c] * keep - along * at;
            }
        }
        STORED(l);
#pragma GCC unroll 2
        for (int i = 0; i < count; i++)
            for (int row = a + 1; row < 8 * parts; row++) {
                of[i].H[row][a / 8][a % 8] = 0;
                for (int c = 0; c < parts; c++) of[i].H[row][c] -= l[i][row] * of[i].H[a][c];
            }
    }
}

/* Fetch the rows of later entries: into the second cache, which waits for more of them at a time than the
 * first, and shortly before their turn into the first. */
INLINE void NAME(fetch)(const REAL *state, const int32_t *rows, int64_t stride)
{
    __builtin_prefetch(state + rows[COLUMN_AHEAD] * stride, 0, 2);
    __builtin_prefetch(state + rows[COLUMN_NEAR] * stride, 1, 3);
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
            NAME(fetch)(state, t->rows + first + i, stride);
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

/* Write down the equations of a column: f grows by 2g per v. The ridges: first |level|^2 with level =
 * w + 2 v's(m - share v), which moves with the centre m for all other columns, and second tr(SS), S = sum
 * of weight sv sv'. */
INLINE void NAME(equate)(const columns *t, int64_t j, NAME(equations) *of, const int parts)
{
    const int64_t width = t->width;
    const REAL *V = t->factors, *w = t->linear;
    const eight *S = (const eight *)t->gram, *m = (const eight *)t->centre, *p = (const eight *)t->pull;
    const eight *s = (const eight *)t->signs;
    NAME(octet) at[4];
    eight h[4], G[4], near[4], signed_v[4];
    double hw = 0, gw = 0;
    const double weight = t->penalty[j], share = t->mean[j], ridge = t->first * weight;
    for (int b = 0; b < parts; b++) {
        at[b] = *(const NAME(octet) *)(V + j * width + 8 * b);
        of->v[b] = NAME(wide)(at[b]), signed_v[b] = s[b] * of->v[b];
        near[b] = s[b] * m[b] - share * signed_v[b];
        h[b] = G[b] = (eight){0};
    }
    for (int a = 0; a < 8 * parts; a++)
        for (int b = 0; b < parts; b++) of->H[a][b] = (eight){0};
    NAME(add_up)(t, t->starts[j], t->starts[j + 1], at, of->H, h, G, &hw, &gw, parts);
    const double level = w[j] + 2 * NAME(dot)(near, of->v, parts);
    hw += ridge, gw += ridge * level;
    const double others = 4 * t->first * share * share, of_all = 4 * t->second * weight + others;
    double lanes[4][MOST_WIDTH] __attribute__((aligned(64))); /* numbers by which rows of S and H go */
    for (int b = 0; b < parts; b++) {
        const eight beside = p[b] - weight * level * of->v[b];
        h[b] = 2 * (h[b] + ridge * near[b]);
        of->step[b] = (gw / hw) * h[b] - 2 * (G[b] + ridge * level * near[b] + t->first * share * s[b] * beside);
        *(eight *)(lanes[0] + 8 * b) = (4 * ridge) * near[b];
        *(eight *)(lanes[1] + 8 * b) = (others * weight) * signed_v[b];
        *(eight *)(lanes[2] + 8 * b) = h[b] / hw;
        *(eight *)(lanes[3] + 8 * b) = (4 * t->second * weight) * of->v[b];
    }
    STORED(lanes);
    for (int a = 0; a < 8 * parts; a++)
        for (int b = 0; b < parts; b++) {
            const eight row = S[a * parts + b];
            of->step[b] -= lanes[3][a] * row;
            of->H[a][b] = 4 * of->H[a][b] + lanes[0][a] * near[b] + of_all * row;
            of->H[a][b] -= lanes[1][a] * signed_v[b] + lanes[2][a] * h[b];
        }
    for (int b = 0; b < parts; b++) of->h[b] = h[b];
    of->hw = hw, of->gw = gw;
}
