/* spin MILLISECONDS: computes for so long by the monotonic clock. */
#include <stdlib.h>
#include <time.h>

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    double until = now_ms() + atof(argv[1]);
    volatile unsigned work = 0;
    while (now_ms() < until)
        for (unsigned i = 0; i < 1000; i++) work = work + i;
    return 0;
}
