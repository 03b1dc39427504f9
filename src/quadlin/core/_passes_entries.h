/* Walks over the entries of sparse rows that compute nothing; included once. `wide` tells 64-bit indices from
 * 32-bit ones, and `bytes` the kind of number, when this is compiled. */

#define ENTRIES static inline __attribute__((always_inline)) void

static inline __attribute__((always_inline)) int64_t index_at(const void *of, int64_t i, const int wide)
{
    return wide ? ((const int64_t *)of)[i] : ((const int32_t *)of)[i];
}

static inline __attribute__((always_inline)) double value_at(const void *of, int64_t i, const int bytes)
{
    return bytes == 8 ? ((const double *)of)[i] : ((const float *)of)[i];
}

/* Count the ones of each column, and write down the nearest later column that has an entry in one of its rows. A
 * column with other entries than ones, or with two in a row, is not eligible for a field. Rows are sorted. */
ENTRIES count_ones(const sparse *x, int64_t n, uint8_t *eligible, int32_t *ones, int32_t *after, const int wide, const int bytes)
{
    const int64_t last = index_at(x->pointers, n, wide);
    for (int64_t i = 0; i < n; i++) {
        int64_t before = -1;
        for (int64_t e = index_at(x->pointers, i, wide); e < index_at(x->pointers, i + 1, wide); e++) {
            const int64_t j = index_at(x->indices, e, wide);
            const int64_t later = index_at(x->indices, e + AHEAD < last ? e + AHEAD : e, wide);
            __builtin_prefetch(ones + later, 1);
            __builtin_prefetch(after + later, 1);
            const double v = value_at(x->data, e, bytes);
            if (v == 0) continue;
            if (v != 1 || j == before) eligible[j] = 0;
            if (before >= 0 && after[before] > j) after[before] = (int32_t)j;
            ones[j]++, before = j;
        }
    }
}

#define EACH_KIND(run, ...)                                                                       \
    if (x->index_bytes == 8 && bytes == 8) run(__VA_ARGS__, 1, 8);                                \
    else if (x->index_bytes == 8) run(__VA_ARGS__, 1, 4);                                         \
    else if (bytes == 8) run(__VA_ARGS__, 0, 8);                                                  \
    else run(__VA_ARGS__, 0, 4);

void run_ones(const sparse *x, int64_t n, uint8_t *eligible, int32_t *ones, int32_t *after, int bytes)
{
    EACH_KIND(count_ones, x, n, eligible, ones, after)
}
