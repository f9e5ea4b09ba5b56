// Kernels of torch's dispatcher that run before those in Python (torch_routing.py). A call of a known kind is served
// here, or goes to torch's own kernel if it is left alone; any other goes to Python, which decides what happens to its
// kind, and serves what this does not.
//
// Nothing is decided here. The core stores the decision for each call signature, launches, and counts calls
// (core/tensors.h, autotune_meet). This file is compiled on the user's machine for the installed torch
// (torch_router.py); it needs nothing of Python or CUDA.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/dlpack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

// BACKEND: cuda. Tests route the host's products: cpu.
#define TEXT(x) #x
#define QUOTED(x) TEXT(x)
#define HEADER_OF(op, backend) QUOTED(ATen/ops/op##_##backend##_dispatch.h)
#define HEADER(op, backend) HEADER_OF(op, backend)
#include HEADER(addmm, BACKEND)
#include HEADER(baddbmm, BACKEND)
#include HEADER(bmm, BACKEND)
#include HEADER(mm, BACKEND)

namespace {

namespace torch_s = at::BACKEND;
using at::Scalar;
using at::Tensor;
using c10::DispatchKeySet;

// The table for one GPU model. A list of tables ends with a handle of NULL; it may grow while it is read.
struct Table {
    void *handle;
    int64_t has_bias; // whether its kernels have an epilogue that adds one
};

enum Reason { UNLIKE, DTYPE, TF32 }; // why a call is left alone before any table is asked

// How Python watches calls: it is called with each but `num_unseen`, before that is served. Threads of the program and
// Python's read and write it at the same time.
struct Watch {
    void (*see)(); // NULL: it does not
    int64_t num_unseen;
    uint64_t hash;    // of all calls since Python set it to 0, in their order
    int64_t is_plain; // whether all calls are left alone, uncounted
};

// What serves one call of a kind that is settled on its own calls (core/live.h).
struct Turn {
    void *plan;
    int32_t is_left_alone, number;
    double began_us;
};

enum Wanted { AS_PLANNED, AS_SETTLED, IN_TURNS }; // core/plan.h
enum Answer { SERVED, LEFT_ALONE, TAKES_TURN };   // core/tensors.h

// Python fills this in, and keeps it. Functions of the core (core.h, tensors.h), and one of torch's exchange of tensors.
struct Router {
    void *(*meet)(void *handle, const DLTensor *a, const DLTensor *b, const DLTensor *out, const DLTensor *bias,
                  int32_t wanted, uint64_t signature, int32_t *answer);
    int32_t (*leaves_alone)(const void *handle, uint64_t signature);
    int (*serve)(const void *handle, void *plan, const DLTensor *a, const DLTensor *b, const DLTensor *c,
                 const DLTensor *bias, double alpha, double beta, void *stream);
    void (*release_plan)(void *plan);
    void (*begin_turn)(const void *plan, void *stream, Turn *turn);
    void (*end_turn)(const void *plan, void *stream, const Turn *turn, int32_t is_done);
    int (*current_stream)(DLDeviceType type, int32_t device, void **stream);
    const Table *plain, *biased; // for products, and for those to which a vector is added
    uint64_t *num_left_alone;    // (reasons)
    Watch *watch;
    int64_t is_live; // whether call signatures are settled on their own calls
};

// alpha A B + beta C. Without an out the result is new; without a C, alpha is 1.
struct Product {
    const Tensor &a, &b;
    const Tensor *out = nullptr, *c = nullptr;
    const Scalar *beta = nullptr, *alpha = nullptr;

    bool reads_c() const { return c && !beta->equal(0); }
};

// What is known of a call: it is left alone, or a plan of the core's serves it; else Python must look at it.
struct Met {
    bool is_left_alone = false;
    const void *handle = nullptr;
    std::unique_ptr<void, void (*)(void *)> plan{nullptr, nullptr};
    bool is_added = false; // the kernel adds C, a bias
    bool takes_turn = false;
};

// The tensor for the core, in the form in which it reads Python's tensors too. This backend's devices count as CUDA's.
DLTensor view(const Tensor &x) {
    DLTensor found{};
    found.data = const_cast<void *>(x.const_data_ptr());
    found.device = {kDLCUDA, std::max<int32_t>(x.get_device(), 0)};
    found.ndim = static_cast<int32_t>(x.dim());
    found.dtype = {kDLFloat, 32, 1};
    found.shape = const_cast<int64_t *>(x.sizes().data());
    found.strides = const_cast<int64_t *>(x.strides().data());
    return found;
}

// Whether a C that is read is a vector that an epilogue can add to each row of the result.
bool is_bias(const Product &asked) {
    const Tensor &c = *asked.c;
    const int64_t columns = asked.b.size(-1);
    if (!asked.beta->equal(1) || c.dim() != 1 || c.size(0) != columns) return false;
    const bool is_apart = !asked.out || asked.out->storage().data() != c.storage().data();
    return is_apart && (columns < 2 || c.stride(0) == 1);
}

at::DimVector extents_of_result(const Product &asked) {
    at::DimVector extents(asked.a.sizes().begin(), asked.a.sizes().end());
    extents.back() = asked.b.size(-1);
    return extents;
}

// Whether torch would add C at all, whatever its scale.
bool fits(const Product &asked) {
    return asked.c->device() == asked.a.device() && at::is_expandable_to(asked.c->sizes(), extents_of_result(asked));
}

constexpr uint64_t ALIGNED = 16; // bytes, as the core's kinds tell addresses apart

// Whether a C that is read has the extents of the result.
bool is_whole(const Product &asked) {
    const auto c = asked.c->sizes(), a = asked.a.sizes();
    return c.size() == a.size() && c.back() == asked.b.size(-1) && std::equal(c.begin(), c.end() - 1, a.begin());
}

constexpr uint64_t HASH_FACTOR = 0x9E3779B97F4A7C15; // of Python's too

uint64_t mixed(uint64_t hash, uint64_t added) {
    hash = (hash ^ added) * HASH_FACTOR;
    return hash ^ hash >> 32;
}

uint64_t mixed(uint64_t hash, const Tensor *x) {
    if (!x) return mixed(hash, UINT64_MAX);
    for (const int64_t extent : x->sizes()) hash = mixed(hash, extent);
    for (const int64_t stride : x->strides()) hash = mixed(hash, stride);
    return mixed(hash, x->dim());
}

// Equal for calls whose operands have equal extents and strides.
uint64_t extents_of(const Product &asked) { return mixed(mixed(asked.c ? 2 : 1, &asked.a), &asked.b); }

// Equal for calls on which there is one decision, if all tensors are of floats on one GPU.
uint64_t signature(const Product &asked) {
    uint64_t found = mixed(mixed(extents_of(asked), asked.out), asked.c);
    for (const Tensor *x : {&asked.a, &asked.b, asked.out}) {
        if (x) found = mixed(found, reinterpret_cast<uintptr_t>(x->const_data_ptr()) % ALIGNED);
    }
    if (asked.c) found = mixed(found, asked.beta->equal(0) ? 0 : 1 + is_bias(asked));
    return mixed(found, asked.a.get_device()) | 1;
}

// The state of one entered context.
struct Entered {
    Router router;
    c10::DeviceType device;
    c10::DispatchKeySet keys; // of a result
    c10::Allocator *allocator;
    std::atomic<bool> is_over{false};

    bool count(Reason reason) const {
        __atomic_fetch_add(&router.num_left_alone[reason], 1, __ATOMIC_RELAXED);
        return true;
    }

    bool is_readable(const Tensor *x) const {
        if (!x) return true;
        const bool is_plain = x->scalar_type() == at::kFloat && x->device().type() == device && !x->is_neg();
        return is_plain && (!x->numel() || (x->has_storage() && x->storage().data())); // else it was freed
    }

    // Shows a call to Python, if it watches; whether that has it left alone.
    bool is_kept_plain(const Product &asked) const {
        Watch &watch = *router.watch;
        const auto see = __atomic_load_n(&watch.see, __ATOMIC_ACQUIRE);
        if (!see) return false;
        const uint64_t added = extents_of(asked);
        uint64_t hash = __atomic_load_n(&watch.hash, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&watch.hash, &hash, hash * HASH_FACTOR + added, true, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED)) {}
        if (__atomic_sub_fetch(&watch.num_unseen, 1, __ATOMIC_RELAXED) < 0) see();
        return __atomic_load_n(&watch.is_plain, __ATOMIC_RELAXED);
    }

    // Whether such calls are known to be left alone; then this one is counted. The shortest way: a program whose products
    // are all left alone is to run as fast as without us, with its own code and data in the caches.
    bool is_known_alone(const Product &asked, uint64_t signature) const {
        const Table *table = tables_of(asked);
        while (table->handle && !router.leaves_alone(table->handle, signature)) table++;
        return table->handle;
    }

    // The signature; 0 for calls that are watched, or left alone before any table is asked, and for odd ones.
    uint64_t signature_of(int64_t num_dimensions, const Product &asked) const {
        if (is_over || __atomic_load_n(&router.watch->see, __ATOMIC_ACQUIRE) || allows_tf32()) return 0;
        if (asked.a.dim() != num_dimensions || asked.b.dim() != num_dimensions) return 0;
        for (const Tensor *x : {&asked.a, &asked.b, asked.out, asked.c}) {
            if (x && (x->scalar_type() != at::kFloat || x->device() != asked.a.device() || x->is_neg())) return 0;
        }
        return signature(asked);
    }

    const Table *tables_of(const Product &asked) const {
        return asked.reads_c() && !is_whole(asked) ? router.biased : router.plain;
    }

    // The conditions of torch_routing.py.
    Met meet(int64_t num_dimensions, const Product &asked, uint64_t signature) const {
        const Tensor &a = asked.a, &b = asked.b;
        if (!signature && (is_over || is_kept_plain(asked))) return {true};
        if (a.dim() != num_dimensions || b.dim() != num_dimensions) return {count(UNLIKE)};
        if (num_dimensions == 3 && a.size(0) != b.size(0)) return {count(UNLIKE)};
        if (asked.c && !fits(asked)) return {count(UNLIKE)};
        if (a.scalar_type() != at::kFloat || b.scalar_type() != at::kFloat) return {count(DTYPE)};
        if (asked.c && asked.c->scalar_type() != at::kFloat) return {count(DTYPE)};
        if (!signature && allows_tf32()) return {count(TF32)};
        for (const Tensor *x : {&a, &b, asked.out, asked.c}) {
            if (!is_readable(x)) return {};
        }
        const Table *table = tables_of(asked);
        return !asked.reads_c() ? known(table, {a, b, asked.out}, signature, false)
                                : known(table, asked, signature, is_bias(asked));
    }

    static bool allows_tf32() {
        const auto precision = at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
        return precision == at::Float32Precision::TF32;
    }

    // What a table knows of such calls; it counts those that it leaves alone. A C that is read and is no bias is first
    // copied into the result: the call signature is that of a new result.
    Met known(const Table *table, const Product &asked, uint64_t signature, bool is_bias) const {
        const DLTensor a = view(asked.a), b = view(asked.b);
        const DLTensor out = view(asked.out ? *asked.out : asked.a), c = view(asked.c ? *asked.c : asked.a);
        for (; table->handle; table++) {
            const bool is_added = is_bias && table->has_bias, is_written = asked.out && (!asked.c || is_added);
            const DLTensor *to = is_written ? &out : nullptr, *bias = is_added ? &c : nullptr;
            int32_t answer;
            void *plan = router.meet(table->handle, &a, &b, to, bias, wanted(), signature, &answer);
            const bool is_left_alone = answer == LEFT_ALONE;
            if (plan || is_left_alone)
                return {is_left_alone, table->handle, {plan, router.release_plan}, is_added, answer == TAKES_TURN};
        }
        return {};
    }

    // What serves may change from call to call only where nobody relies on equal bits: not where torch is deterministic,
    // nor where a forward pass is computed again within a backward one.
    Wanted wanted() const {
        if (!router.is_live) return AS_SETTLED;
        const bool is_recomputed = torch::autograd::get_current_graph_task_id() != -1 && c10::GradMode::is_enabled();
        return is_recomputed || at::globalContext().deterministicAlgorithms() ? AS_PLANNED : IN_TURNS;
    }

    bool has_stream(const Tensor &a, void **stream) const {
        return router.current_stream && !router.current_stream(kDLCUDA, view(a).device.device_id, stream);
    }

    // The result, or none if Python must serve.
    Tensor serve(const Met &met, const Product &asked) const { return serve(met, met.plan.get(), asked); }

    Tensor serve(const Met &met, void *plan, const Product &asked) const {
        const bool is_copied = asked.reads_c() && !met.is_added;
        if (!plan || (is_copied && asked.out) || !is_real(asked.alpha) || !is_real(asked.beta)) return {};
        Tensor result = asked.out ? *asked.out : new_result(asked);
        if (is_copied) result.copy_(*asked.c);
        const DLTensor a = view(asked.a), b = view(asked.b), c = view(result);
        const DLTensor bias = met.is_added ? view(*asked.c) : DLTensor{};
        const double alpha = asked.alpha ? asked.alpha->toDouble() : 1, beta = is_copied ? asked.beta->toDouble() : 0;
        void *stream = nullptr;
        if (!has_stream(asked.a, &stream)) return {};
        const DLTensor *added = met.is_added ? &bias : nullptr;
        if (router.serve(met.handle, plan, &a, &b, &c, added, alpha, beta, stream)) return {};
        return result;
    }

    static bool is_real(const Scalar *x) { return !x || x->isFloatingPoint() || x->isIntegral(false); }

    // As torch's `empty`, without its checks of what is known here.
    Tensor new_result(const Product &asked) const {
        const c10::DeviceGuard guard(asked.a.device());
        return at::detail::empty_generic(extents_of_result(asked), allocator, keys, at::kFloat, std::nullopt);
    }
};

// The kernel of one operator, which runs before the one in Python.
struct Kernel {
    std::shared_ptr<const Entered> entered;
    c10::SafeKernelFunction python;
    int64_t num_dimensions;

    // The result of a call that is served here; else of `own` if it is left alone, and of `python`.
    template <typename Own, typename Python> Tensor run(const Product &asked, Own own, Python python) const {
        const uint64_t signature = entered->signature_of(num_dimensions, asked);
        if (signature && entered->is_known_alone(asked, signature)) return own();
        const Met met = entered->meet(num_dimensions, asked, signature);
        if (met.is_left_alone) return own();
        Tensor found = met.takes_turn ? in_turn(met, asked, own) : entered->serve(met, asked);
        return found.defined() ? std::move(found) : python();
    }

    // The result by what has its turn; none if Python must serve.
    template <typename Own> Tensor in_turn(const Met &met, const Product &asked, Own own) const {
        struct Ended { // also by an exception of torch's own kernel
            const Router &router;
            const void *plan;
            void *stream = nullptr;
            Turn turn{};
            bool is_done = false;
            ~Ended() { router.end_turn(plan, stream, &turn, is_done); }
        };
        void *stream = nullptr;
        if (!entered->has_stream(asked.a, &stream)) return {};
        Ended ended{entered->router, met.plan.get(), stream};
        entered->router.begin_turn(ended.plan, stream, &ended.turn);
        Tensor found = ended.turn.is_left_alone ? Tensor(own()) : entered->serve(met, ended.turn.plan, asked);
        ended.is_done = found.defined();
        return found;
    }

    template <typename... Arguments> Tensor by_python(DispatchKeySet keys, const Arguments &...arguments) const {
        torch::jit::Stack stack{c10::IValue(arguments)...};
        python.callBoxed(python.opHandle(), keys, &stack);
        return std::move(stack.front()).toTensor();
    }
};

// Threads that are inside a kernel when the context is left keep it alive.
using Held = std::shared_ptr<const Kernel>;
using Multiply = Tensor (*)(const Tensor &, const Tensor &);
using MultiplyInto = Tensor &(*)(const Tensor &, const Tensor &, Tensor &);
using Add = Tensor (*)(const Tensor &, const Tensor &, const Tensor &, const Scalar &, const Scalar &);
using AddInto = Tensor &(*)(const Tensor &, const Tensor &, const Tensor &, const Scalar &, const Scalar &, Tensor &);

template <Multiply own> auto multiply(Held kernel) {
    return [kernel](DispatchKeySet keys, const Tensor &a, const Tensor &b) -> Tensor {
        const Held held = kernel;
        return held->run({a, b}, [&] { return own(a, b); }, [&] { return held->by_python(keys, a, b); });
    };
}

template <MultiplyInto own> auto multiply_into(Held kernel) {
    return [kernel](DispatchKeySet keys, const Tensor &a, const Tensor &b, Tensor &out) -> Tensor & {
        const Held held = kernel;
        held->run({a, b, &out}, [&] { return own(a, b, out); }, [&] { return held->by_python(keys, a, b, out); });
        return out;
    };
}

template <Add own> auto add(Held kernel) {
    return [kernel](DispatchKeySet keys, const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta,
                    const Scalar &alpha) -> Tensor {
        const Held held = kernel;
        return held->run({a, b, nullptr, &c, &beta, &alpha}, [&] { return own(c, a, b, beta, alpha); },
                         [&] { return held->by_python(keys, c, a, b, beta, alpha); });
    };
}

template <AddInto own> auto add_into(Held kernel) {
    return [kernel](DispatchKeySet keys, const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta,
                    const Scalar &alpha, Tensor &out) -> Tensor & {
        const Held held = kernel;
        held->run({a, b, &out, &c, &beta, &alpha}, [&] { return own(c, a, b, beta, alpha, out); },
                  [&] { return held->by_python(keys, c, a, b, beta, alpha, out); });
        return out;
    };
}

struct Registered {
    std::shared_ptr<Entered> entered = std::make_shared<Entered>();
    c10::DispatchKey key;
    torch::Library library;

    Registered(const Router &router, c10::DispatchKey key)
        : key(key), library(torch::Library::IMPL, "aten", key, "torch_router.cpp", __LINE__) {
        entered->router = router;
        entered->device = c10::backendToDeviceType(c10::dispatchKeyToBackend(key));
        entered->keys = c10::DispatchKeySet(key);
        entered->allocator = c10::GetAllocator(entered->device);
    }

    Held kernel(const char *name, const char *overload, int64_t num_dimensions) const {
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
        return std::make_shared<Kernel>(Kernel{entered, op.getComputedKernelForDispatchKey(key), num_dimensions});
    }
};

} // namespace

extern "C" {

// Python compares this size with that of its own struct.
uint64_t autotune_router_bytes() { return sizeof(Router); }

// Puts kernels before those that Python has registered for a key. NULL, with none registered, if torch refuses.
void *autotune_router_enter(const Router *router, const char *key) try {
    auto all = std::make_unique<Registered>(*router, c10::parseDispatchKey(key));
    auto &library = all->library;
    library.impl("mm", multiply<torch_s::mm>(all->kernel("aten::mm", "", 2)));
    library.impl("mm.out", multiply_into<torch_s::mm_outf>(all->kernel("aten::mm", "out", 2)));
    library.impl("addmm", add<torch_s::addmm>(all->kernel("aten::addmm", "", 2)));
    library.impl("addmm.out", add_into<torch_s::addmm_outf>(all->kernel("aten::addmm", "out", 2)));
    library.impl("bmm", multiply<torch_s::bmm>(all->kernel("aten::bmm", "", 3)));
    library.impl("bmm.out", multiply_into<torch_s::bmm_outf>(all->kernel("aten::bmm", "out", 3)));
    library.impl("baddbmm", add<torch_s::baddbmm>(all->kernel("aten::baddbmm", "", 3)));
    library.impl("baddbmm.out", add_into<torch_s::baddbmm_outf>(all->kernel("aten::baddbmm", "out", 3)));
    return all.release();
} catch (const std::exception &) {
    return nullptr;
}

// Removes these kernels, before Python removes its own.
void autotune_router_leave(void *entered) {
    auto *all = static_cast<Registered *>(entered);
    all->entered->is_over = true;
    delete all;
}
}
