/* A pass over sparse rows; included once per kind of number and set of instructions. */

INLINE int64_t NAME(place)(const sparse *x, const void *of, int64_t i)
{
    return x->index_bytes == 4 ? ((const int32_t *)of)[i] : ((const int64_t *)of)[i];
}

/* The column of an entry: `wide` tells 64-bit indices from 32-bit ones when this is compiled. */
INLINE int64_t NAME(column)(const sparse *x, int64_t e, int wide)
{
    return wide ? ((const int64_t *)x->indices)[e] : ((const int32_t *)x->indices)[e];
}

/* row[c] = sum over entries of v W[j][c], or of v^2 W[j][c], and W[j][c] += v row[c] the other way
 * round, for `count` vectors of columns. Sums of even and of odd entries do not wait for each other,
 * and what later entries need is fetched beforehand. */
#define WALKS(V, lanes, gather, scatter)                                                          \
    INLINE void NAME(gather)(const sparse *x, int64_t first, int64_t last, int64_t end, const REAL *W, int64_t width, int count, int squared, int wide, REAL *row) \
    {                                                                                             \
        const REAL *data = x->data;                                                               \
        V sum[2][4];                                                                              \
        int64_t e = first;                                                                        \
        _Pragma("GCC unroll 4") for (int b = 0; b < count; b++) sum[0][b] = sum[1][b] = (V){0};   \
        for (; e + 1 < last; e += 2)                                                              \
            _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++) {                                 \
                const REAL v = squared ? data[e + h] * data[e + h] : data[e + h];                 \
                const REAL *w = W + NAME(column)(x, e + h, wide) * width;                         \
                const int64_t next = e + h + AHEAD < end ? e + h + AHEAD : e;                     \
                __builtin_prefetch(W + NAME(column)(x, next, wide) * width, 0, 3);                \
                _Pragma("GCC unroll 4") for (int b = 0; b < count; b++)                           \
                    sum[h][b] += v * *(const V *)(w + b * lanes);                                 \
            }                                                                                     \
        if (e < last) {                                                                           \
            const REAL v = squared ? data[e] * data[e] : data[e];                                 \
            const REAL *w = W + NAME(column)(x, e, wide) * width;                                 \
            _Pragma("GCC unroll 4") for (int b = 0; b < count; b++)                               \
                sum[0][b] += v * *(const V *)(w + b * lanes);                                     \
        }                                                                                         \
        _Pragma("GCC unroll 4") for (int b = 0; b < count; b++)                                   \
            *(V *)(row + b * lanes) = sum[0][b] + sum[1][b];                                      \
    }                                                                                             \
    INLINE void NAME(scatter)(const sparse *x, int64_t first, int64_t last, int64_t end, REAL *W, int64_t width, int count, int squared, int wide, const REAL *row) \
    {                                                                                             \
        const REAL *data = x->data;                                                               \
        V r[4];                                                                                   \
        _Pragma("GCC unroll 4") for (int b = 0; b < count; b++) r[b] = *(const V *)(row + b * lanes); \
        for (int64_t e = first; e < last; e++) {                                                  \
            const REAL v = squared ? data[e] * data[e] : data[e];                                 \
            REAL *w = W + NAME(column)(x, e, wide) * width;                                       \
            const int64_t next = e + AHEAD < end ? e + AHEAD : e;                                 \
            __builtin_prefetch(W + NAME(column)(x, next, wide) * width, 1, 3);                    \
            _Pragma("GCC unroll 4") for (int b = 0; b < count; b++)                               \
                *(V *)(w + b * lanes) += v * r[b];                                                \
        }                                                                                         \
    }

WALKS(VEC, LANES, gather, scatter)
WALKS(QUARTER, (LANES * 16 / BYTES), gather_narrow, scatter_narrow)
#undef WALKS

#define FOUR_AT_MOST(DO, lanes, W, width, squared, wide, row)                                     \
    for (int64_t c = 0; c < width; c += 4 * (lanes)) {                                            \
        const int64_t count = (width - c) / (lanes);                                              \
        if (count >= 4) DO(x, first, last, end, W + c, width, 4, squared, wide, row + c);         \
        else if (count == 3) DO(x, first, last, end, W + c, width, 3, squared, wide, row + c);    \
        else if (count == 2) DO(x, first, last, end, W + c, width, 2, squared, wide, row + c);    \
        else DO(x, first, last, end, W + c, width, 1, squared, wide, row + c);                    \
    }
/* Rows of whole vectors go by these, others by vectors of 16 bytes: a smaller W stays in the cache. */
#define BY_INDEX(DO, W, width, squared, wide, row)                                                \
    if ((width) % LANES == 0) {                                                                   \
        FOUR_AT_MOST(NAME(DO), LANES, W, width, squared, wide, row)                               \
    } else {                                                                                      \
        FOUR_AT_MOST(NAME(DO##_narrow), LANES * 16 / BYTES, W, width, squared, wide, row)         \
    }
#define WIDE_OR_NARROW(DO, W, width, squared, row)                                                \
    if (x->index_bytes == 8) {                                                                    \
        BY_INDEX(DO, W, width, squared, 1, row)                                                   \
    } else {                                                                                      \
        BY_INDEX(DO, W, width, squared, 0, row)                                                   \
    }

static TARGET void NAME(gather_row)(const sparse *x, int64_t first, int64_t last, int64_t end, REAL *row, REAL *square_row)
{
    const REAL *W = x->weights, *B = x->square_weights;
    WIDE_OR_NARROW(gather, W, x->width, 0, row)
    WIDE_OR_NARROW(gather, B, x->square_width, 1, square_row)
}

static TARGET void NAME(scatter_row)(const sparse *x, int64_t first, int64_t last, int64_t end, const REAL *row)
{
    REAL *back = x->back, *back_squares = x->back_squares;
    WIDE_OR_NARROW(scatter, back, x->back_width, 0, row)
    if (x->levelled) return;
    WIDE_OR_NARROW(scatter, back_squares, x->back_square_width, 1, row)
}
#undef FOUR_AT_MOST
#undef BY_INDEX
#undef WIDE_OR_NARROW

static REAL *NAME(after)(REAL *from, int64_t count)
{
    return (REAL *)(((uintptr_t)(from + count) + 63) / 64 * 64);
}

/* From sums over entries to sums over standardised rows. */
static TARGET void NAME(standardise_sums)(const pass *p, const sparse *x)
{
    const REAL *scale = x->scale, *shift = x->shift, level = (REAL)x->level;
    for (int64_t j = 0; j < p->d; j++) {
        REAL *back = (REAL *)x->back + j * x->back_width;
        REAL *squares = (REAL *)x->back_squares + j * x->back_square_width;
        for (int64_t c = 0; c < p->square_columns; c++) {
            const REAL square = x->levelled ? level * back[c] : squares[c];
            squares[c] = scale[j] * scale[j] * square - 2 * scale[j] * shift[j] * back[c]
                         + shift[j] * shift[j] * (REAL)x->totals[c];
        }
        for (int64_t c = 0; c < p->columns; c++)
            back[c] = scale[j] * back[c] - shift[j] * (REAL)x->totals[c];
    }
}

/* All rows forward, then all rows back: the weights and the sums need the cache each on their own. */
static TARGET void NAME(run_sparse)(const pass *p, const sparse *x)
{
    const int64_t n = p->n, q = p->q, s = p->s, columns = p->columns;
    REAL *P = NAME(after)(p->memory, 0), *R = NAME(after)(P, (n + GROUP - 1) * (q + s));
    REAL *row = NAME(after)(R, columns * GROUP), *square_row = NAME(after)(row, x->width);
    REAL *back_row = NAME(after)(square_row, x->square_width);
    const REAL *constant = x->constant;
    const int64_t end = NAME(place)(x, x->pointers, n);
    for (int64_t start = 0; q + s && start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        REAL *at = P + start * (q + s), *squares = at + q * GROUP;
        if (rows < GROUP) memset(at, 0, (q + s) * GROUP * sizeof(REAL));
        for (int g = 0; g < rows; g++) {
            const int64_t first = NAME(place)(x, x->pointers, start + g);
            NAME(gather_row)(x, first, NAME(place)(x, x->pointers, start + g + 1), end, row, square_row);
            for (int64_t c = 0; c < q + s; c++) at[c * GROUP + g] = row[c] - constant[c];
            if (x->square_width)
                for (int64_t c = 0; c < s; c++) squares[c * GROUP + g] += square_row[c];
        }
        NAME(hand_out)(p, start, rows, at, squares);
    }
    memset(back_row, 0, x->back_width * sizeof(REAL));
    for (int64_t start = 0; columns && start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        REAL *at = P + start * (q + s);
        NAME(take_in)(p, start, rows, at, at + q * GROUP, R);
        for (int g = 0; g < rows; g++) {
            for (int64_t c = 0; c < columns; c++) {
                back_row[c] = R[c * GROUP + g];
                x->totals[c] += (double)back_row[c];
            }
            const int64_t first = NAME(place)(x, x->pointers, start + g);
            NAME(scatter_row)(x, first, NAME(place)(x, x->pointers, start + g + 1), end, back_row);
        }
    }
    if (columns) NAME(standardise_sums)(p, x);
}
