/* One process of an evolutionary optimiser with two objectives, as the example of an application in rounds.
 *
 *   evolve --function 1..4|7 --topology regular|scale-free|small-world|random --seed N [--population N] [--iterations N]
 *
 * Individuals live on the nodes of a network, as in Netto et al. (2011, section 5): each mates with its neighbours only. A
 * node prefers one direction of the front (MOEA/D, Zhang and Li 2007: the Chebyshev distance with the node's weights), and a child
 * takes the place of its parent's node and of neighbours for which it is better.
 *
 * In a later round the population is that of inputs/state/population, and what is in inputs/merged/front, of all processes, takes
 * the nodes for which it is better. Leaves ./population. Deterministic: all chance comes from seed, process and round. */
#include "dtlz.h"

#define NEIGHBOURS_MAX 64

static void evaluate(int function, Solution *s) {
    int n = variables(function);
    const double pi = 3.14159265358979323846;
    double g = 0, position = s->x[0];
    for (int i = 1; i < n; i++) {
        double d = s->x[i] - 0.5;
        switch (function) {
        case 1: case 3: g += d * d - cos(20 * pi * d) + 1; break;
        case 7: g += s->x[i]; break;
        default: g += d * d;
        }
    }
    if (function == 1 || function == 3) g *= 100;
    if (function == 4) position = pow(position, 100);
    switch (function) {
    case 1:
        s->f[0] = 0.5 * position * (1 + g);
        s->f[1] = 0.5 * (1 - position) * (1 + g);
        break;
    case 7: {
        g = 1 + 9 * g / (n - 1);
        s->f[0] = position;
        s->f[1] = (1 + g) * (2 - position / (1 + g) * (1 + sin(3 * pi * position)));
        break;
    }
    default:
        s->f[0] = (1 + g) * cos(position * pi / 2);
        s->f[1] = (1 + g) * sin(position * pi / 2);
    }
}

static uint64_t chance_state;

static uint64_t next_word(void) {
    uint64_t z = (chance_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double chance(void) { return (double)(next_word() >> 11) * 0x1p-53; }
static int below(int n) { return (int)(next_word() % (uint64_t)n); }

static int (*neighbours)[NEIGHBOURS_MAX];
static int *degree;

static int are_linked(int a, int b) {
    for (int i = 0; i < degree[a]; i++)
        if (neighbours[a][i] == b) return 1;
    return 0;
}

static void join(int a, int b) {
    if (a == b || are_linked(a, b) || degree[a] == NEIGHBOURS_MAX || degree[b] == NEIGHBOURS_MAX) return;
    neighbours[a][degree[a]++] = b;
    neighbours[b][degree[b]++] = a;
}

static void make_ring(int n, int reach) {
    for (int i = 0; i < n; i++)
        for (int j = 1; j <= reach; j++) join(i, (i + j) % n);
}

/* The four networks of the paper. All have about four neighbours a node. */
static void make_network(const char *topology, int n) {
    if (!strcmp(topology, "regular")) {
        int side = 1;
        while ((side + 1) * (side + 1) <= n) side++;
        for (int i = 0; i < n; i++) {
            join(i, i % side == side - 1 ? i - side + 1 < n ? i - side + 1 : 0 : (i + 1) % n);
            join(i, (i + side) % n);
        }
    } else if (!strcmp(topology, "small-world")) {
        make_ring(n, 2);
        for (int i = 0; i < n / 5; i++) join(below(n), below(n));
    } else if (!strcmp(topology, "scale-free")) {
        /* A new node is linked to ends of links, so that nodes with many links get more. */
        int *ends = calloc((size_t)(4 * n + 4), sizeof *ends), count = 0;
        if (!ends) die("no memory for", "the network");
        join(0, 1);
        ends[count++] = 0;
        ends[count++] = 1;
        for (int i = 2; i < n; i++)
            for (int j = 0; j < 2; j++) {
                int to = ends[below(count)];
                if (are_linked(i, to)) continue;
                join(i, to);
                ends[count++] = i;
                ends[count++] = to;
            }
        free(ends);
    } else if (!strcmp(topology, "random")) {
        make_ring(n, 1);
        for (int i = 0; i < n; i++) join(i, below(n));
    } else {
        errno = 0;
        die("unknown topology", topology);
    }
}

/* How far a solution is from what a node wants: the less the better. */
static double distance(const Solution *s, int node, int n) {
    double w = (node + 0.5) / n;
    double a = w * s->f[0], b = (1 - w) * s->f[1];
    return (a > b ? a : b) + 1e-3 * (s->f[0] + s->f[1]);
}

static double bounded(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

/* Simulated binary crossover, then polynomial mutation (both with index 15). */
static void breed(const Solution *a, const Solution *b, Solution *child, int n) {
    for (int i = 0; i < n; i++) {
        double u = chance();
        double spread = u < 0.5 ? pow(2 * u, 1.0 / 16) : pow(1 / (2 * (1 - u)), 1.0 / 16);
        if (next_word() & 1) spread = -spread;
        double x = chance() < 0.5 ? a->x[i] : 0.5 * ((1 + spread) * a->x[i] + (1 - spread) * b->x[i]);
        if (chance() * n < 1) {
            double v = chance();
            x += v < 0.5 ? pow(2 * v, 1.0 / 16) - 1 : 1 - pow(2 * (1 - v), 1.0 / 16);
        }
        child->x[i] = bounded(x);
    }
}

int main(int argc, char **argv) {
    const char *topology = "regular", *iterations_text = getenv("IDLEWOOD_ITERATIONS");
    int function = 2, size = 100;
    long seed = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--function")) function = (int)number_of(value, "--function (1 to 4, or 7)", 1, 7);
        else if (!strcmp(argv[i], "--topology") && value) topology = value;
        else if (!strcmp(argv[i], "--seed")) seed = number_of(value, "--seed", 0, 1l << 30);
        else if (!strcmp(argv[i], "--population")) size = (int)number_of(value, "--population (16 to 10000)", 16, 10000);
        else if (!strcmp(argv[i], "--iterations")) iterations_text = value;
        else { errno = 0; die("unknown argument", argv[i]); }
    }
    if (function == 5 || function == 6) { errno = 0; die("cannot use", "--function (1 to 4, or 7)"); }
    long iterations = number_of(iterations_text ? iterations_text : "100", "--iterations", 1, 1l << 30);
    const char *round = getenv("IDLEWOOD_ROUND"), *process = getenv("IDLEWOOD_PROCESS");
    int n = variables(function), given, count;

    neighbours = calloc((size_t)size, sizeof *neighbours);
    degree = calloc((size_t)size, sizeof *degree);
    if (!neighbours || !degree) die("no memory for", "the network");
    /* The network stays the same in all rounds. */
    chance_state = (uint64_t)seed * 0x2545f4914f6cdd1du + 1;
    make_network(topology, size);
    chance_state ^= (uint64_t)(process ? atol(process) + 1 : 0) << 40;
    chance_state += (uint64_t)(round ? atol(round) + 1 : 0) * 0xd1342543de82ef95u;

    Solution *all = load("inputs/state/population", &given, &count);
    if (all && (given != function || count != size)) { errno = 0; die("another application's", "inputs/state/population"); }
    if (!all) {
        all = calloc((size_t)size, sizeof *all);
        if (!all) die("no memory for", "the population");
        for (int i = 0; i < size; i++) {
            for (int j = 0; j < n; j++) all[i].x[j] = chance();
            evaluate(function, &all[i]);
        }
    }
    Solution *front = load("inputs/merged/front", &given, &count);
    if (front && given != function) { errno = 0; die("another application's", "inputs/merged/front"); }
    for (int i = 0; front && i < count; i++)
        for (int node = 0; node < size; node++)
            if (distance(&front[i], node, size) < distance(&all[node], node, size)) all[node] = front[i];
    free(front);

    for (long iteration = 0; iteration < iterations; iteration++)
        for (int node = 0; node < size; node++) {
            Solution child;
            const Solution *mate = &all[neighbours[node][below(degree[node])]];
            const Solution *parent = chance() < 0.5 ? &all[node] : &all[neighbours[node][below(degree[node])]];
            memset(&child, 0, sizeof child);
            breed(parent, mate, &child, n);
            evaluate(function, &child);
            if (distance(&child, node, size) < distance(&all[node], node, size)) all[node] = child;
            for (int i = 0; i < degree[node]; i++) {
                int near = neighbours[node][i];
                if (distance(&child, near, size) < distance(&all[near], near, size)) all[near] = child;
            }
        }
    save("population", function, all, size);
    printf("%ld iterations of %d individuals, topology %s\n", iterations, size, topology);
    return 0;
}
