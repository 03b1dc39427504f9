/* A pass over sparse rows; included once per kind of number and set of instructions. */

INLINE int64_t NAME(place)(const sparse *x, const void *of, int64_t i)
{
    return x->index_bytes == 4 ? ((const int32_t *)of)[i] : ((const int64_t *)of)[i];
}

/* row[c] = sum over entries of v W[j][c], or of v^2 W[j][c], for `count` vectors of columns. */
INLINE void NAME(gather)(const sparse *x, int64_t first, int64_t last, const REAL *W, int64_t width, int count, int squared, REAL *row)
{
    const REAL *data = x->data;
    VEC sum[4];
#pragma GCC unroll 4
    for (int b = 0; b < count; b++) sum[b] = (VEC){0};
    for (int64_t e = first; e < last; e++) {
        const REAL v = squared ? data[e] * data[e] : data[e];
        const REAL *w = W + NAME(place)(x, x->indices, e) * width;
#pragma GCC unroll 4
        for (int b = 0; b < count; b++) sum[b] += v * *(const VEC *)(w + b * LANES);
    }
#pragma GCC unroll 4
    for (int b = 0; b < count; b++) *(VEC *)(row + b * LANES) = sum[b];
}

/* W[j][c] += v row[c], or v^2 row[c], for all entries. */
INLINE void NAME(scatter)(const sparse *x, int64_t first, int64_t last, REAL *W, int64_t width, int count, int squared, const REAL *row)
{
    const REAL *data = x->data;
    VEC r[4];
#pragma GCC unroll 4
    for (int b = 0; b < count; b++) r[b] = *(const VEC *)(row + b * LANES);
    for (int64_t e = first; e < last; e++) {
        const REAL v = squared ? data[e] * data[e] : data[e];
        REAL *w = W + NAME(place)(x, x->indices, e) * width;
#pragma GCC unroll 4
        for (int b = 0; b < count; b++) *(VEC *)(w + b * LANES) += v * r[b];
    }
}

#define FOUR_AT_MOST(DO, W, width, squared, row)                                                  \
    for (int64_t c = 0; c < width; c += 4 * LANES) {                                              \
        const int64_t count = (width - c) / LANES;                                                \
        if (count >= 4) DO(x, first, last, W + c, width, 4, squared, row + c);                    \
        else if (count == 3) DO(x, first, last, W + c, width, 3, squared, row + c);               \
        else if (count == 2) DO(x, first, last, W + c, width, 2, squared, row + c);               \
        else DO(x, first, last, W + c, width, 1, squared, row + c);                               \
    }

static TARGET void NAME(gather_row)(const sparse *x, int64_t first, int64_t last, REAL *row, REAL *square_row)
{
    const REAL *W = x->weights, *B = x->square_weights;
    FOUR_AT_MOST(NAME(gather), W, x->width, 0, row)
    FOUR_AT_MOST(NAME(gather), B, x->square_width, 1, square_row)
}

static TARGET void NAME(scatter_row)(const sparse *x, int64_t first, int64_t last, const REAL *row)
{
    REAL *back = x->back, *back_squares = x->back_squares;
    FOUR_AT_MOST(NAME(scatter), back, x->back_width, 0, row)
    FOUR_AT_MOST(NAME(scatter), back_squares, x->back_square_width, 1, row)
}
#undef FOUR_AT_MOST

static REAL *NAME(after)(REAL *from, int64_t count)
{
    return (REAL *)(((uintptr_t)(from + count) + 63) / 64 * 64);
}

static TARGET void NAME(run_sparse)(const pass *p, const sparse *x)
{
    const int64_t n = p->n, q = p->q, s = p->s;
    REAL *P = NAME(after)(p->memory, 0), *PS = P + q * GROUP, *R = PS + s * GROUP;
    REAL *row = NAME(after)(R, p->columns * GROUP), *square_row = NAME(after)(row, x->width);
    REAL *back_row = NAME(after)(square_row, x->square_width);
    memset(P, 0, (q + s + p->columns) * GROUP * sizeof(REAL));
    memset(back_row, 0, x->back_width * sizeof(REAL));
    const REAL *constant = x->constant;
    for (int64_t start = 0; start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        for (int g = 0; q + s && g < rows; g++) {
            const int64_t first = NAME(place)(x, x->pointers, start + g);
            NAME(gather_row)(x, first, NAME(place)(x, x->pointers, start + g + 1), row, square_row);
            for (int64_t c = 0; c < q; c++) P[c * GROUP + g] = row[c] - constant[c];
            for (int64_t c = 0; c < s; c++) PS[c * GROUP + g] = row[q + c] - constant[q + c];
            if (x->square_width)
                for (int64_t c = 0; c < s; c++) PS[c * GROUP + g] += square_row[c];
        }
        NAME(hand_out)(p, start, rows, P, PS);
        NAME(take_in)(p, start, rows, P, PS, R);
        for (int g = 0; p->columns && g < rows; g++) {
            for (int64_t c = 0; c < p->columns; c++) {
                back_row[c] = R[c * GROUP + g];
                x->totals[c] += (double)back_row[c];
            }
            const int64_t first = NAME(place)(x, x->pointers, start + g);
            NAME(scatter_row)(x, first, NAME(place)(x, x->pointers, start + g + 1), back_row);
        }
    }
}
