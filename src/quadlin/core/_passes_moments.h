/* The moments of all columns; included once per kind of number and set of instructions.
 *
 * STRIP rows of TILE columns are read from memory for their means and ranges, and from the cache for
 * the powers of what is left of them, in units of the range: no power overflows, underflows or
 * cancels. The moments of strips add. Everything is computed in double. */

/* Add the moments of a tile of a strip to those of the rows before it. */
static TARGET void NAME(add_strip)(const moments *t, int64_t from, int64_t width, double weight, const strip *restrict s, const powers *restrict w)
{
    const double total = t->total + weight, p = t->total / total, q = weight / total;
    double *restrict mean = t->mean + from, *restrict var = t->var + from, *restrict kappa = t->kappa + from;
    double *restrict phi = t->phi + from, *restrict low = t->low + from, *restrict high = t->high + from;
    if (!(t->total > 0)) /* what is overwritten may be anything */
        for (int64_t j = 0; j < width; j++) {
            mean[j] = s->mean[j], var[j] = 0, kappa[j] = 0, phi[j] = 1;
            low[j] = s->low[j], high[j] = s->high[j];
        }
    for (int64_t j = 0; j < width; j++) {
        /* The second look removes the rounding of the first mean. */
        const double off = w->first[j], s2 = w->second[j], s3 = w->third[j], s4 = w->fourth[j];
        const double c2 = s2 - off * off, c3 = s3 - off * (3 * s2 - 2 * off * off);
        const double c4 = s4 - off * (4 * s3 - off * (6 * s2 - 3 * off * off));
        const double root = __builtin_sqrt(c2 > 0 ? c2 : 1);
        const double spread = c2 > 0 ? s->range[j] * root : 0;
        const double k = c2 > 0 ? c3 / (root * root * root) : 0, f = c2 > 0 ? c4 / (c2 * c2) : 1;
        const double gap = s->mean[j] + s->range[j] * off - mean[j];
        const double both = p * var[j] + q * (spread * spread) + (p * q) * (gap * gap);
        const double inverse = 1 / __builtin_sqrt(both > 0 ? both : 1);
        const double a = __builtin_sqrt(var[j]) * inverse, b = spread * inverse, g = gap * inverse;
        const double aa = a * a, bb = b * b, gg = g * g;
        const double third = p * aa * a * kappa[j] + q * bb * b * k + p * q * g * (3 * (bb - aa) + (p - q) * gg);
        const double fourth = p * aa * aa * phi[j] + q * bb * bb * f
                              + p * q * (4 * g * (bb * b * k - aa * a * kappa[j])
                                         + gg * (6 * (p * bb + q * aa) + (p * p - p * q + q * q) * gg));
        mean[j] += q * gap, var[j] = both;
        kappa[j] = both > 0 ? third : 0, phi[j] = both > 0 ? fourth : 1;
        low[j] = s->low[j] < low[j] ? s->low[j] : low[j];
        high[j] = s->high[j] > high[j] ? s->high[j] : high[j];
    }
}

/* Means and ranges of GROUP rows, and powers of the same rows; w are shares of the weight. */
static TARGET void NAME(look)(const REAL *const *x, const double *w, int64_t width, double *restrict mean, double *restrict low, double *restrict high)
{
    for (int64_t j = 0; j < width; j++) {
        double sum = mean[j], l = low[j], h = high[j];
#pragma GCC unroll 8
        for (int g = 0; g < GROUP; g++) {
            const double v = x[g][j];
            sum += w[g] * v;
            l = v < l ? v : l;
            h = v > h ? v : h;
        }
        mean[j] = sum, low[j] = l, high[j] = h;
    }
}

static TARGET void NAME(look_again)(const REAL *const *x, const double *w, int64_t width, const strip *restrict s, powers *restrict p)
{
    for (int64_t j = 0; j < width; j++) {
        const double m = s->mean[j], inverse = s->inverse[j];
        double s1 = p->first[j], s2 = p->second[j], s3 = p->third[j], s4 = p->fourth[j];
#pragma GCC unroll 8
        for (int g = 0; g < GROUP; g++) {
            const double z = ((double)x[g][j] - m) * inverse, square = z * z, weighted = w[g] * square;
            s1 += w[g] * z;
            s2 += weighted;
            s3 += weighted * z;
            s4 += weighted * square;
        }
        p->first[j] = s1, p->second[j] = s2, p->third[j] = s3, p->fourth[j] = s4;
    }
}

/* Rows whose numbers do not lie one after the other are copied, a tile at a time. */
static TARGET const REAL *NAME(laid_out)(const moments *t, const char *const *rows, int64_t count, int64_t width, REAL *copy)
{
    for (int64_t from = 0; from < width; from += 16) { /* a line of the cache of so many columns stays */
        const int64_t to = width - from < 16 ? width : from + 16;
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = from; j < to; j++)
                copy[i * TILE + j] = *(const REAL *)(rows[i] + j * t->x_column);
    }
    return copy;
}

/* The moments of one tile of a strip, of `count` rows whose shares of its weight are given. */
static TARGET void NAME(of_tile)(const moments *t, const char *const *rows, const double *share, int64_t count, int64_t first, int64_t width, strip *s, powers *p, REAL *copy)
{
    const REAL *x[STRIP];
    const char *at[STRIP];
    for (int64_t i = 0; i < count; i++) at[i] = rows[i] + first * t->x_column;
    if (t->x_column == sizeof(REAL))
        for (int64_t i = 0; i < count; i++) x[i] = (const REAL *)at[i];
    else {
        const REAL *from = NAME(laid_out)(t, at, count, width, copy);
        for (int64_t i = 0; i < count; i++) x[i] = from + i * TILE;
    }
    for (int64_t i = count; i % GROUP; i++) x[i] = x[0]; /* of no weight */
    for (int64_t j = 0; j < width; j++) s->mean[j] = 0, s->low[j] = INFINITY, s->high[j] = -INFINITY;
    memset(p, 0, sizeof *p);
    for (int64_t i = 0; i < count; i += GROUP) NAME(look)(x + i, share + i, width, s->mean, s->low, s->high);
    for (int64_t j = 0; j < width; j++)
        s->inverse[j] = inverse_range(s->mean + j, s->range + j, s->low[j], s->high[j]);
    for (int64_t i = 0; i < count; i += GROUP) NAME(look_again)(x + i, share + i, width, s, p);
}

static TARGET void NAME(moments)(moments *t)
{
    strip s;
    powers p;
    REAL *copy = t->memory;
    double share[STRIP];
    const char *rows[STRIP];
    int64_t row = 0;
    t->total = 0;
    while (row < t->n) {
        int64_t count = 0;
        double weight = 0;
        for (; row < t->n && count < STRIP; row++) {
            const double w = t->weight ? t->weight[row] : 1;
            if (!(w > 0)) continue;
            rows[count] = t->x + row * t->x_row, share[count++] = w;
            weight += w;
        }
        if (!count) break;
        for (int64_t i = 0; i < count; i++) share[i] /= weight;
        for (int64_t i = count; i % GROUP; i++) share[i] = 0;
        for (int64_t first = 0; first < t->d; first += TILE) {
            const int64_t width = t->d - first < TILE ? t->d - first : TILE;
            NAME(of_tile)(t, rows, share, count, first, width, &s, &p, copy);
            NAME(add_strip)(t, first, width, weight, &s, &p);
        }
        t->total += weight;
    }
}

/* Tell whether entries are all one, as those of one-hot rows. */
static TARGET int NAME(all_ones)(const REAL *data, int64_t first, int64_t last)
{
    int others = 0;
    for (int64_t e = first; e < last && !others; e += STRIP) {
        const int64_t end = last - e < STRIP ? last : e + STRIP;
        for (int64_t i = e; i < end; i++) others |= data[i] != 1;
    }
    return !others;
}

/* Count the entries of each column, and add up their weights and their means. */
static TARGET void NAME(look_at_entries)(const moments *t, const sparse *x, int64_t all, line *lines)
{
    const REAL *data = x->data;
    for (int64_t j = 0; j < t->d; j++) lines[j] = (line){.low = INFINITY, .high = -INFINITY};
    for (int64_t i = 0; i < t->n; i++) {
        const double w = (t->weight ? t->weight[i] : 1) / t->total;
        const int64_t last = NAME(place)(x, x->pointers, i + 1);
        if (!(w > 0)) continue;
        for (int64_t e = NAME(place)(x, x->pointers, i); e < last; e++) {
            line *c = lines + NAME(place)(x, x->indices, e);
            const double v = data[e];
            __builtin_prefetch(lines + NAME(place)(x, x->indices, e + AHEAD < all ? e + AHEAD : e), 1);
            c->count++, c->share += w, c->mean += w * v;
            c->low = v < c->low ? v : c->low;
            c->high = v > c->high ? v : c->high;
        }
    }
}

/* Add the moments of some columns whose powers are summed but for those of their zeros. */
static TARGET void NAME(add_lines)(moments *t, line *lines, const double *zeros, int64_t first, int64_t width, double weight)
{
    strip s;
    powers p;
    for (int64_t j = 0; j < width; j++) {
        line *c = lines + j;
        if (zeros[j] > 0) add_power(c, 0, zeros[j]);
        p.first[j] = c->first, p.second[j] = c->second, p.third[j] = c->third, p.fourth[j] = c->fourth;
        s.mean[j] = c->mean, s.low[j] = c->low, s.high[j] = c->high, s.range[j] = t->var[first + j];
    }
    NAME(add_strip)(t, first, width, weight, &s, &p);
}

/* Rows without weights whose entries are all one: their number in each column is all that there is to know. */
static TARGET void NAME(one_hot_moments)(moments *t, const sparse *x, int64_t start, int64_t all)
{
    line lines[TILE];
    double zeros[TILE];
    int32_t *const count = t->memory; /* half of the cache that doubles would take */
    for (int64_t j = 0; j < t->d; j++) count[j] = 0;
    for (int64_t e = start; e < all; e++) count[NAME(place)(x, x->indices, e)]++;
    for (int64_t first = 0; t->n && first < t->d; first += TILE) {
        const int64_t width = t->d - first < TILE ? t->d - first : TILE;
        for (int64_t j = 0; j < width; j++) {
            const double ones = count[first + j], share = ones / t->n, at = ones ? 1 : INFINITY;
            lines[j] = (line){.mean = share, .count = ones, .share = share, .low = at, .high = ones ? 1 : -INFINITY};
            zeros[j] = turn_line(t, lines + j, first + j, t->n);
            if (ones) add_power(lines + j, 1, share);
        }
        NAME(add_lines)(t, lines, zeros, first, width, t->n);
    }
    t->total = t->n;
}

/* Sparse rows: entries twice, and what is left of the weight for the zeros. Each column has a line of
 * the cache for its sums. */
static TARGET void NAME(sparse_moments)(moments *t, const sparse *x)
{
    line *lines = t->memory;
    double *const zeros = (double *)(lines + t->d);
    const REAL *data = x->data;
    const int64_t start = NAME(place)(x, x->pointers, 0), all = NAME(place)(x, x->pointers, t->n);
    int64_t counting = 0;
    t->total = 0;
    if (!t->weight && NAME(all_ones)(data, start, all)) {
        NAME(one_hot_moments)(t, x, start, all);
        return;
    }
    for (int64_t i = 0; i < t->n; i++) {
        const double w = t->weight ? t->weight[i] : 1;
        if (w > 0) t->total += w, counting++;
    }
    NAME(look_at_entries)(t, x, all, lines);
    for (int64_t j = 0; j < t->d; j++) zeros[j] = turn_line(t, lines + j, j, counting);
    for (int64_t i = 0; i < t->n; i++) {
        const double w = (t->weight ? t->weight[i] : 1) / t->total;
        const int64_t last = NAME(place)(x, x->pointers, i + 1);
        if (!(w > 0)) continue;
        for (int64_t e = NAME(place)(x, x->pointers, i); e < last; e++) {
            __builtin_prefetch(lines + NAME(place)(x, x->indices, e + AHEAD < all ? e + AHEAD : e), 1);
            add_power(lines + NAME(place)(x, x->indices, e), data[e], w);
        }
    }
    const double weight = t->total;
    t->total = 0; /* for there are no rows before these */
    for (int64_t first = 0; weight > 0 && first < t->d; first += TILE) {
        const int64_t width = t->d - first < TILE ? t->d - first : TILE;
        NAME(add_lines)(t, lines + first, zeros + first, first, width, weight);
    }
    t->total = weight;
}
