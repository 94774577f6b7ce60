// A CUDA driver without a card, for tests of the runtime: a context and a stream are tokens, memory is the host's, and
// a kernel of a module whose image begins with "fake:" is a function of this file. What is called is written down.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOk = 0, kInvalidValue = 1, kInvalidContext = 201, kInvalidPtx = 218, kNotFound = 500 };

typedef struct {
  char name[64];
} Function;

typedef struct {
  int id;
  _Alignas(8) unsigned value[16];
} Attribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
} Config;

static char log_text[1 << 16];
static size_t log_bytes;
static char failing[64];  // the function that fails, and how
static int failing_code;
static int max_threads = 1024, static_shared = 0, max_shared = 232448, capturing = 0;
static int driver_version = 12040, minor = 5;
static int clusters = 1, room = 1;            // whether the card has clusters; how many of them at a time
static unsigned long long stream_numbers[16];  // a stream is a small number
static int contexts[8];  // a context is a pointer to the device's place
static _Thread_local void *stack[8];
static _Thread_local int depth;

// With QUIET nothing is, so that what a launch costs beside the driver can be timed.
static void note(const char *format, ...) {
#ifdef QUIET
  (void)format;
#else
  va_list arguments;
  va_start(arguments, format);
  const size_t left = sizeof log_text - log_bytes;
  const int wrote = vsnprintf(log_text + log_bytes, left, format, arguments);
  if (wrote > 0 && (size_t)wrote < left) log_bytes += (size_t)wrote;
  va_end(arguments);
#endif
}

static int fails(const char *function) { return strcmp(failing, function) == 0 ? failing_code : kOk; }

// --- for tests ---------------------------------------------------------------------------------------------

// What was called since the last time.
const char *fake_log(void) {
  static char given[sizeof log_text];
  memcpy(given, log_text, log_bytes);
  given[log_bytes] = '\0';
  log_bytes = 0;
  return given;
}

void fake_fail(const char *function, int code) {
  snprintf(failing, sizeof failing, "%s", function);
  failing_code = code;
}

void fake_set(const char *what, int value) {
  if (strcmp(what, "max_threads") == 0) max_threads = value;
  if (strcmp(what, "static_shared") == 0) static_shared = value;
  if (strcmp(what, "capturing") == 0) capturing = value;
  if (strcmp(what, "version") == 0) driver_version = value;
  if (strcmp(what, "minor") == 0) minor = value;
  if (strcmp(what, "clusters") == 0) clusters = value;
  if (strcmp(what, "room") == 0) room = value;
}

// The stream of that handle is another one from now on.
void fake_new_stream(int handle, unsigned long long number) { stream_numbers[handle] = number; }

// --- kernels: their parameters are buffers, sizes, and the extent --------------------------------------------

#define FLOATS(i) (*(float **)parameters[i])
#define INT(i) (*(int64_t *)parameters[i])

// Rows of a table (csrc/device_rows.cpp), by blocks of 4096 elements: c0 += a * c1, of the sizes a and the rows' length.
static void run_rows(const int64_t *table, unsigned blocks) {
  double a;
  memcpy(&a, table, sizeof a);
  const int64_t rows = table[2];
  for (int64_t block = 0; block < blocks; ++block) {
    int64_t row = 0, first = 0;
    for (; row < rows && table[3 + 4 * row] <= block; ++row) first = table[3 + 4 * row];
    if (row == rows) abort();  // a block without a row
    const int64_t *record = table + 3 + 4 * row;
    float *c0 = (float *)record[2], *c1 = (float *)record[3];
    const int64_t start = (block - first) * 4096;
    for (int64_t i = start; i < record[1] && i < start + 4096; ++i) c0[i] += (float)a * c1[i];
  }
}

// out = x, by blocks that each add one to each of so many counters: the last one sets them back.
static void run_count(int counters, void **parameters, unsigned blocks) {
  uint32_t *words = *(uint32_t **)parameters[3];
  note("counters %p\n", (void *)words);
  for (int64_t i = 0; i < INT(2); ++i) FLOATS(1)[i] = FLOATS(0)[i];
  for (int word = 0; word < counters; ++word) {
    if (words[word] != 0) FLOATS(1)[0] = -1;
    words[word] += blocks;
    words[word] -= blocks;
  }
}

static void run(const char *kernel, void **parameters, unsigned blocks) {
  if (strcmp(kernel, "rows") == 0) {
    run_rows(parameters[0], blocks);
    return;
  }
  if (strcmp(kernel, "add") == 0) {
    for (int64_t i = 0; i < INT(3); ++i) FLOATS(2)[i] = FLOATS(0)[i] + FLOATS(1)[i];
  } else if (strcmp(kernel, "scale") == 0) {
    for (int64_t i = 0; i < INT(4); ++i) FLOATS(1)[i] = FLOATS(0)[i] * (float)INT(2) + (float)INT(3);
  } else if (strcmp(kernel, "double") == 0) {
    for (int64_t i = 0; i < INT(2); ++i) FLOATS(1)[i] = FLOATS(0)[i] * 2;
  } else if (strncmp(kernel, "count", 5) == 0) {
    run_count(kernel[5] - '0', parameters, blocks);
  }
}

// --- the driver --------------------------------------------------------------------------------------------

int cuInit(unsigned flags) {
  note("init %u\n", flags);
  return fails("cuInit");
}

int cuDriverGetVersion(int *version) {
  *version = driver_version;
  return fails("cuDriverGetVersion");
}

int cuGetErrorName(int error, const char **name) {
  static const struct {
    int error;
    const char *name;
  } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},         {100, "CUDA_ERROR_NO_DEVICE"},
               {201, "CUDA_ERROR_INVALID_CONTEXT"},     {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
               {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},     {999, "CUDA_ERROR_UNKNOWN"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (names[i].error != error) continue;
    *name = names[i].name;
    return kOk;
  }
  return kInvalidValue;
}

int cuGetErrorString(int error, const char **text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : "what happened";
  return kOk;
}

int cuDeviceGet(int *device, int number) {
  *device = number;
  return number < 0 || number >= 8 ? kInvalidValue : fails("cuDeviceGet");
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 7 : attribute == 76 ? minor : attribute == 97 ? max_shared : attribute == 120 ? clusters : 0;
  return kOk;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  note("retain %d\n", device);
  *context = &contexts[device];
  return fails("cuDevicePrimaryCtxRetain");
}

int cuCtxGetCurrent(void **context) {
  *context = depth > 0 ? stack[depth - 1] : NULL;
  return kOk;
}

int cuCtxGetDevice(int *device) {
  *device = depth > 0 ? (int)((int *)stack[depth - 1] - contexts) : -1;
  return depth > 0 ? kOk : kInvalidContext;
}

int cuCtxSetCurrent(void *context) {
  note("set_context %d\n", (int)((int *)context - contexts));
  if (depth == 0) ++depth;
  stack[depth - 1] = context;
  return kOk;
}

int cuCtxPushCurrent_v2(void *context) {
  stack[depth++] = context;
  return kOk;
}

int cuCtxPopCurrent_v2(void **context) {
  if (depth == 0) return kInvalidContext;
  *context = stack[--depth];
  return kOk;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
  static _Thread_local int current;
  const int before = current;
  current = *mode;
  *mode = before;
  return kOk;
}

int cuStreamIsCapturing(void *stream, int *status) {
  *status = stream != NULL && capturing;
  return kOk;
}

int cuModuleLoadDataEx(void **module, const char *image, unsigned count, int *options, void **values) {
  const int device = depth > 0 ? (int)((int *)stack[depth - 1] - contexts) : -1;
  note("load %s on %d\n", image, device);
  int error = fails("cuModuleLoadDataEx");
  int is_binary = 0, made_for = -1;
  if (error == kOk && sscanf(image, "cubin %d:%n", &made_for, &is_binary) == 1 && made_for != minor) return 209;
  if (error == kOk && is_binary == 0 && strncmp(image, "fake:", 5) != 0) error = kInvalidPtx;
  if (error == kInvalidPtx) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == 5) strcpy(values[i], "ptxas application ptx input, line 3; error");
    }
  }
  if (error != kOk) return error;
  *module = strdup(image + (is_binary > 0 ? is_binary : 5));
  return kOk;
}

int cuModuleUnload(char *module) {
  note("unload %s\n", module);
  free(module);
  return fails("cuModuleUnload");
}

int cuModuleGetFunction(Function **function, const char *module, const char *name) {
  if (strcmp(module, name) != 0) return kNotFound;
  *function = calloc(1, sizeof **function);
  snprintf((*function)->name, sizeof(*function)->name, "%s", name);
  return fails("cuModuleGetFunction");
}

int cuFuncGetAttribute(int *value, int attribute, Function *function) {
  (void)function;
  *value = attribute == 0 ? max_threads : attribute == 1 ? static_shared : attribute == 3 ? 16 : attribute == 4 ? 40 : 0;
  return fails("cuFuncGetAttribute");
}

int cuFuncSetAttribute(Function *function, int attribute, int value) {
  note("set_attribute %s %d %d\n", function->name, attribute, value);
  if (value > max_shared) return kInvalidValue;
  return fails("cuFuncSetAttribute");
}

int cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra) {
  note("launch %s grid %ux%ux%u block %ux%ux%u shared %u stream %p\n", function->name, grid_x, grid_y, grid_z, block_x,
       block_y, block_z, shared, stream);
  if (depth == 0) return kInvalidContext;
  if (extra != NULL || grid_x == 0) return kInvalidValue;
  const int error = fails("cuLaunchKernel");
  if (error == kOk) run(function->name, parameters, grid_x);
  return error;
}

int cuMemsetD32Async(unsigned long long memory, unsigned value, size_t count, void *stream) {
  note("set %zu words to %u stream %p\n", count, value, stream);
  const int error = fails("cuMemsetD32Async");
  if (error == kOk) {
    for (size_t i = 0; i < count; ++i) ((uint32_t *)memory)[i] = value;
  }
  return error;
}

#ifndef NO_LINKER

// --- the linker: of "fake:x" it makes a binary of the card's capability, which begins with its minor number -----

typedef struct {
  unsigned count;
  int *options;
  void **values;
  char made[64];
} Link;

int cuLinkCreate_v2(unsigned count, int *options, void **values, Link **link) {
  const int error = fails("cuLinkCreate_v2");
  if (error != kOk) return error;
  *link = calloc(1, sizeof **link);
  (*link)->count = count;
  (*link)->options = options;
  (*link)->values = values;
  return kOk;
}

int cuLinkAddData_v2(Link *link, int type, const char *data, size_t bytes, const char *name, unsigned count,
                     int *options, void **values) {
  (void)options;
  (void)values;
  note("assemble %s\n", name);
  if (type != 1 || count != 0 || bytes != strlen(data) + 1) return kInvalidValue;
  int error = fails("cuLinkAddData_v2");
  if (error == kOk && strncmp(data, "fake:", 5) != 0) error = kInvalidPtx;
  if (error == kInvalidPtx) {
    for (unsigned i = 0; i < link->count; ++i) {
      if (link->options[i] == 5) strcpy(link->values[i], "ptxas application ptx input, line 3; error");
    }
  }
  if (error == kOk) snprintf(link->made, sizeof link->made, "cubin %d:%s", minor, data + 5);
  return error;
}

int cuLinkComplete(Link *link, void **image, size_t *bytes) {
  *image = link->made;
  *bytes = strlen(link->made);
  return fails("cuLinkComplete");
}

int cuLinkDestroy(Link *link) {
  note("destroy link\n");
  memset(link, 0, sizeof *link);
  free(link);
  return kOk;
}

#endif

// What drivers before 11.8 and 12.0 lack.
#ifndef OLD_DRIVER

int cuLaunchKernelEx(const Config *config, Function *function, void **parameters, void **extra) {
  const unsigned *grid = config->grid, *block = config->block;
  note("launch %s grid %ux%ux%u block %ux%ux%u shared %u stream %p", function->name, grid[0], grid[1], grid[2],
       block[0], block[1], block[2], config->shared, config->stream);
  for (unsigned i = 0; i < config->count; ++i) {
    const unsigned *value = config->attributes[i].value;
    note(" attribute %d: %ux%ux%u", config->attributes[i].id, value[0], value[1], value[2]);
  }
  note("\n");
  if (depth == 0) return kInvalidContext;
  if (extra != NULL || grid[0] == 0) return kInvalidValue;
  const int error = fails("cuLaunchKernelEx");
  if (error == kOk) run(function->name, parameters, grid[0]);
  return error;
}

int cuOccupancyMaxActiveClusters(int *count, Function *function, const Config *config) {
  (void)function;
  (void)config;
  *count = room;
  return fails("cuOccupancyMaxActiveClusters");
}

int cuStreamGetId(void *stream, unsigned long long *number) {
  const uintptr_t handle = (uintptr_t)stream;
  *number = handle < 16 && stream_numbers[handle] != 0 ? stream_numbers[handle] : handle;
  return fails("cuStreamGetId");
}

#endif
