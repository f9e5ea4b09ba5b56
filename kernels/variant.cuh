// What any kernel may be compiled for besides its parameters: batches, and what it adds to a product (output.cuh).
#pragma once

enum { BIAS_NONE, BIAS_ROWS, BIAS_COLUMNS };
enum { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_GELU_TANH };
#ifndef BATCHED
#define BATCHED 0
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#ifndef KEEPS
#define KEEPS 0
#endif

constexpr bool IS_BATCHED = BATCHED;
