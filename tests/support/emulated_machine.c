/* Runs programs of kernels: what it is given is written by emulated_machine.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int64_t kernel(void **buffers, const int64_t *sizes, int64_t begin, int64_t end);
extern kernel *const kernels[];

static FILE *jobs;

static int64_t number(void) {
    int64_t found;
    if (fread(&found, sizeof found, 1, jobs) != 1) {
        fprintf(stderr, "the jobs end too early\n");
        exit(2);
    }
    return found;
}

static int64_t *numbers(int64_t count) {
    int64_t *found = malloc((count + 1) * sizeof *found);
    for (int64_t n = 0; n < count; n++) found[n] = number();
    return found;
}

int main(int argc, char **argv) {
    if (argc != 3 || !(jobs = fopen(argv[1], "rb"))) return 2;
    FILE *results = fopen(argv[2], "wb");
    int64_t blocks = number();
    char **memory = malloc((blocks + 1) * sizeof *memory);
    int64_t *bytes = malloc((blocks + 1) * sizeof *bytes);
    for (int64_t n = 0; n < blocks; n++) {
        bytes[n] = number();
        int64_t given = number();
        memory[n] = aligned_alloc(64, (bytes[n] + 127) / 64 * 64);
        for (int64_t at = 0; at < bytes[n]; at++) memory[n][at] = (char)0xA5;
        if (fread(memory[n], 1, given, jobs) != (size_t)given) return 2;
    }
    int64_t calls = number(), failed = 0;
    for (int64_t n = 0; n < calls; n++) {
        int64_t function = number(), count = number();
        void **buffers = malloc((count + 1) * sizeof *buffers);
        for (int64_t at = 0; at < count; at++) {
            int64_t block = number();
            buffers[at] = memory[block] + number();
        }
        int64_t *sizes = numbers(number());
        int64_t extent = number(), middle = number();
        int64_t status = kernels[function](buffers, sizes, 0, middle);
        if (middle < extent) status |= kernels[function](buffers, sizes, middle, extent);
        failed += status != 0;
    }
    fwrite(&failed, sizeof failed, 1, results);
    int64_t outputs = number();
    for (int64_t n = 0; n < outputs; n++) {
        int64_t block = number();
        fwrite(memory[block], 1, bytes[block], results);
    }
    return fclose(results);
}
