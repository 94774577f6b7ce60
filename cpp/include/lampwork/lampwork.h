/* Lampwork artifacts (`.lamp` files) without Python and without torch: a small, stable C interface.

   Objects are opaque. Every function that can fail returns an lw_status; lw_error() then says what was expected, what
   came, and what to do. No exception and no signal handler crosses this interface. All functions may be called from many
   threads at once, also on the same model, except lw_free.

       lw_model* model;
       lw_options options = lw_default_options();
       options.trust = 1;                           // the machine code in the file is run: you know who made it
       if (lw_load("m.lamp", &options, &model) != LW_OK) puts(lw_error());

   C++ programs include lampwork.hpp, which is this with owners, vectors and exceptions. */
#ifndef LAMPWORK_H
#define LAMPWORK_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LW_API
#else
#define LW_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Counts up when something here changes in a way that old programs notice. */
#define LW_ABI_VERSION 1

typedef enum lw_status {
  LW_OK = 0,
  LW_ARGUMENT = 1,    /* a call of this interface makes no sense: a null pointer, no such entry */
  LW_FILE = 2,        /* the file cannot be opened, read or mapped */
  LW_FORMAT = 3,      /* it is no artifact, or a damaged one */
  LW_VERSION = 4,     /* it is of a version that this library does not know, or holds what it does not know */
  LW_TRUST = 5,       /* it holds machine code that nobody said is to be trusted, or that none of the keys signed */
  LW_TARGET = 6,      /* it holds no code for this machine */
  LW_INPUT = 7,       /* inputs of a call are not what the entry takes */
  LW_WEIGHTS = 8,     /* a file of weights does not fit */
  LW_NEEDS_ATEN = 9,  /* the entry calls operators of torch: liblampwork_torch runs it */
  LW_MEMORY = 10,     /* there is not enough memory */
  LW_KERNEL = 11,     /* a kernel found an index out of range */
  LW_INTERNAL = 12    /* a mistake in this library */
} lw_status;

/* Elements of tensors; the names are torch's. */
typedef enum lw_dtype {
  LW_NO_DTYPE = 0,
  LW_FLOAT32 = 1,
  LW_FLOAT64 = 2,
  LW_FLOAT16 = 3,
  LW_BFLOAT16 = 4,
  LW_INT8 = 5,
  LW_INT16 = 6,
  LW_INT32 = 7,
  LW_INT64 = 8,
  LW_UINT8 = 9,
  LW_UINT16 = 10,
  LW_UINT32 = 11,
  LW_UINT64 = 12,
  LW_BOOL = 13,
  LW_FLOAT8_E4M3FN = 14,
  LW_FLOAT8_E5M2 = 15,
  LW_COMPLEX64 = 16,
  LW_COMPLEX128 = 17
} lw_dtype;

/* A tensor in memory. `strides` are in elements; a null pointer stands for those of C's arrays. */
typedef struct lw_tensor {
  void* data;
  lw_dtype dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
} lw_tensor;

/* What an input or a result is like. -1 in `shape`: it is another with each call. */
typedef struct lw_spec {
  const char* name;
  lw_dtype dtype;
  int32_t ndim;
  const int64_t* shape;
} lw_spec;

typedef struct lw_options {
  size_t size;        /* of this struct; lw_default_options fills it in */
  int trust;          /* not 0: the machine code in the file may be run */
  int threads;        /* that share the work of a call, the caller among them; 0: as many as there are cores */
  const char* target; /* the name of the target whose code is used; null: the best that this CPU has */
  const char* const* keys; /* paths of public keys, or their PEM: one of them has to have signed the file, whatever `trust`
                              says, and its machine code may be run then; null: none */
  size_t n_keys;
} lw_options;

typedef struct lw_model lw_model;
typedef struct lw_result lw_result;

/* What went wrong in the last call of this thread that failed: text that stays until the next one does. */
LW_API const char* lw_error(void);
/* "LW_INPUT", ... */
LW_API const char* lw_status_name(lw_status status);
/* LW_ABI_VERSION of the library. */
LW_API int lw_abi_version(void);
/* Bytes of an element; 0 for what is no dtype. */
LW_API size_t lw_dtype_size(lw_dtype dtype);
/* "float32", ... */
LW_API const char* lw_dtype_name(lw_dtype dtype);

LW_API lw_options lw_default_options(void);

/* Maps a file. The weights are pages of the file, shared by all processes that map it: it must not change while a model
   uses it (replace it by renaming another over it). */
LW_API lw_status lw_load(const char* path, const lw_options* options, lw_model** model);
LW_API void lw_free(lw_model* model);

/* The manifest of the file, as JSON, and which target was picked, why. They live as long as the model. */
LW_API const char* lw_manifest(const lw_model* model);
LW_API const char* lw_target(const lw_model* model);
LW_API const char* lw_target_reason(const lw_model* model);

/* The id of the key that signed the file, as lampwork keygen says it; "" if it was loaded without keys. */
LW_API const char* lw_signer(const lw_model* model);

/* Entries are numbered; most files have one, "forward". Pointers live as long as the model. */
LW_API size_t lw_entry_count(const lw_model* model);
LW_API const char* lw_entry_name(const lw_model* model, size_t entry);
LW_API lw_status lw_find_entry(const lw_model* model, const char* name, size_t* entry);
LW_API size_t lw_input_count(const lw_model* model, size_t entry);
LW_API lw_status lw_input_spec(const lw_model* model, size_t entry, size_t input, lw_spec* spec);
LW_API size_t lw_output_count(const lw_model* model, size_t entry);
LW_API lw_status lw_output_spec(const lw_model* model, size_t entry, size_t output, lw_spec* spec);
/* Numbers that are arguments of the model, such as sizes, in the order in which calls give them. */
LW_API size_t lw_number_count(const lw_model* model, size_t entry);
LW_API const char* lw_number_name(const lw_model* model, size_t entry, size_t number);
/* The operators of torch that an entry calls, separated by spaces; "" if it needs no torch. */
LW_API const char* lw_entry_needs_aten(const lw_model* model, size_t entry);

/* Uses the weights of another safetensors file, which has no others, from the next call on; calls that run finish with
   those they have. */
LW_API lw_status lw_set_weights(lw_model* model, const char* path);

/* Computes what is computed of the weights alone, which otherwise the first call does. */
LW_API lw_status lw_prepare(lw_model* model, size_t entry);

/* Runs an entry. Inputs are read where they lie, unless the entry says that it writes to them. Results belong to the
   lw_result, and stay until it is freed, also after lw_free: but for views of inputs that the entry wrote to, which lie in
   the memory of these (lw_result_alias). */
LW_API lw_status lw_run(lw_model* model, size_t entry, const lw_tensor* inputs, size_t n_inputs, const int64_t* numbers,
                        size_t n_numbers, lw_result** result);
/* The same with results in memory of the caller, of the sizes that the call gives (lw_output_spec, -1 apart). */
LW_API lw_status lw_run_into(lw_model* model, size_t entry, const lw_tensor* inputs, size_t n_inputs,
                             const int64_t* numbers, size_t n_numbers, const lw_tensor* outputs, size_t n_outputs);

LW_API size_t lw_result_count(const lw_result* result);
LW_API lw_status lw_result_tensor(const lw_result* result, size_t output, lw_tensor* tensor);
/* Which input a result lies in, because the model wrote to it and returned it, or a view of it; -1: it has memory of its own.
   `offset`: of its first element from the input's, in elements. Its shape and strides are those of lw_result_tensor. */
LW_API lw_status lw_result_alias(const lw_result* result, size_t output, int64_t* input, int64_t* offset);
LW_API void lw_result_free(lw_result* result);

#ifdef __cplusplus
}
#endif

#endif
