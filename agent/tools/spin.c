/*
 * Spins on one CPU and says how long it was kept from running: `numawarden interference --probe`.
 *
 *     spin PROCS CPU SECONDS
 *
 * PROCS is the cgroup.procs of the cgroup to enter before, "" for none. Prints the longest gap between
 * two readings of the clock, the shortest (what the probe can distinguish), both in nanoseconds, and how
 * many gaps were longer than GAP_NS. Exits with 1 and a line on standard error where the kernel does not
 * let it run there. agent/tools/spin.py does the same without a compiler.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GAP_NS 10000

static int64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: spin PROCS CPU SECONDS\n");
        return 2;
    }
    if (argv[1][0]) {
        FILE *procs = fopen(argv[1], "w");

        if (!procs || fprintf(procs, "0\n") < 0 || fclose(procs))
            return failed(argv[1]);
    }
    int cpu = atoi(argv[2]);
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);

    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    if (sched_setaffinity(0, size, set))
        return failed("sched_setaffinity");

    int64_t before = now(), end = before + (int64_t)(atof(argv[3]) * 1e9);
    int64_t longest = 0, shortest = INT64_MAX, gaps = 0;

    while (before < end) {
        int64_t after = now(), gap = after - before;

        before = after;
        if (gap > longest)
            longest = gap;
        if (gap > 0 && gap < shortest)
            shortest = gap;
        if (gap > GAP_NS)
            gaps++;
    }
    printf("%lld %lld %lld\n", (long long)longest, (long long)shortest, (long long)gaps);
    return 0;
}
