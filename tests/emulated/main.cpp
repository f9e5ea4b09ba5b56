// Reads problems from standard input, runs each and writes its C to standard output.
//
// Per problem: the length of its name (int64), the name, the struct Problem, then A, B, C and the bias packed as
// rows of floats, those of one product after the other. They are laid out here with their leading dimensions and
// strides: each in memory of its own that ends with the last element, with NaN between the rows and between the
// products. What a kernel keeps is laid out in the same way, NaN throughout; it is written behind C. Where A and B
// must not be read (alpha or k is zero) they have no memory at all. Operands are packed before the product, as the
// dispatcher does it, with nothing else within reach; the product then reads the copies and cannot reach the
// originals.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "emulator.hpp"
#include "problem.hpp"

namespace emulated {

namespace {

constexpr int64_t HUGE_FLOATS = int64_t{1} << 28;  // from here on memory is mapped, not filled
constexpr int64_t PADDING_SEEN = 64;               // floats filled at either end of a gap

// The matrices of an operand in memory of their own; `packed` holds their elements row by row. The rows of one
// product may lie between those of another.
class Matrices {
  public:
    Matrices(const Stored& stored, const std::vector<float>& packed) : cols_(stored.cols) {
        for (int64_t product = 0; product < stored.count && !packed.empty(); ++product) {
            for (int64_t row = 0; row < stored.rows; ++row) {
                starts_.push_back(product * stored.stride + row * stored.ld);
            }
        }
        in_order_ = starts_;
        std::sort(in_order_.begin(), in_order_.end());
        num_ = stored.offset + (starts_.empty() ? 0 : in_order_.back() + cols_);
        memory_ = is_mapped() ? map() : static_cast<float*>(malloc(num_ * sizeof(float)));
        base_ = memory_ + stored.offset;
        for (size_t i = 0; i < starts_.size(); ++i) {
            memcpy(base_ + starts_[i], packed.data() + i * cols_, cols_ * sizeof(float));
        }
        each_padding([](float& at) { at = poison(GLOBAL_POISON); });
    }
    Matrices(const Matrices&) = delete;
    ~Matrices() {
        if (is_mapped()) {
            munmap(memory_, num_ * sizeof(float));
        } else {
            free(memory_);
        }
    }

    float* base() const { return base_; }
    Region region(const char* name, bool is_writable, bool is_readable) const {
        return {name, base_, memory_ + num_, is_writable, is_readable, true};
    }

    std::vector<float> packed() const {
        std::vector<float> elements(starts_.size() * cols_);
        for (size_t i = 0; i < starts_.size(); ++i) {
            memcpy(elements.data() + i * cols_, base_ + starts_[i], cols_ * sizeof(float));
        }
        return elements;
    }

    void check_padding(const char* name) {
        const float expected = poison(GLOBAL_POISON);
        each_padding([&](float& at) {
            if (memcmp(&at, &expected, sizeof at) != 0) {
                const auto row = std::upper_bound(in_order_.begin(), in_order_.end(), &at - base_) - 1;
                fault("padding of %s overwritten: element %td of row %td", name, (&at - base_) - *row,
                      row - in_order_.begin());
            }
        });
    }

  private:
    bool is_mapped() const { return num_ >= HUGE_FLOATS; }

    float* map() const {
        void* memory = mmap(nullptr, num_ * sizeof(float), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) fault("no address space for %lld floats", static_cast<long long>(num_));
        return static_cast<float*>(memory);
    }

    template <class Visit>
    void each_padding(Visit visit) {
        for (size_t row = 0; row + 1 < in_order_.size(); ++row) {
            float* begin = base_ + in_order_[row] + cols_;
            const int64_t gap = in_order_[row + 1] - in_order_[row] - cols_;
            if (gap < 0) fault("rows of an operand overlap");
            for (int64_t i = 0; i < gap; ++i) {
                if (i == PADDING_SEEN && gap > 2 * PADDING_SEEN) i = gap - PADDING_SEEN;
                visit(begin[i]);
            }
        }
    }

    int64_t cols_, num_;
    std::vector<int64_t> starts_;    // of rows, product after product
    std::vector<int64_t> in_order_;  // as they lie in memory
    float* memory_;
    float* base_;
};

// Packed operands and partial sums, NaN, and behind them the counters, zero. Aligned to vectors of four and
// no further.
class Workspace {
  public:
    explicit Workspace(const Problem& p)
        : packed_(p.pack_bytes / sizeof(float)),
          sums_(p.sum_bytes / sizeof(float)),
          counters_(p.counter_bytes / sizeof(float)),
          floats_(new float[packed_ + sums_ + counters_]) {
        for (size_t i = 0; i < packed_ + sums_; ++i) floats_[i] = poison(GLOBAL_POISON);
        memset(base() + sums_, 0, counters_ * sizeof(float));
    }
    float* base() const { return floats_.get() + packed_; }  // behind the packed operands
    float* packed(const Pack& pack) const { return floats_.get() + pack.offset / sizeof(float); }
    Region region() const { return {"the workspace", base(), base() + sums_ + counters_, true, true}; }

    void check_counters() const {
        for (size_t i = 0; i < counters_; ++i) {
            unsigned counter;
            memcpy(&counter, base() + sums_ + i, sizeof counter);
            if (counter != 0) fault("counter %zu is left at %u instead of zero", i, counter);
        }
    }

  private:
    size_t packed_, sums_, counters_;
    std::unique_ptr<float[]> floats_;
};

void read_all(void* to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) fault("standard input ended within a problem");
}

int64_t elements(const Stored& stored) { return stored.count * stored.rows * stored.cols; }

std::vector<float> read_elements(const Stored& stored) {
    std::vector<float> floats(elements(stored));
    if (!floats.empty()) read_all(floats.data(), floats.size() * sizeof(float));
    return floats;
}

void check_unchanged(const char* name, const Matrices& matrix, const std::vector<float>& before) {
    if (before.empty()) return;
    const std::vector<float> after = matrix.packed();
    if (memcmp(after.data(), before.data(), before.size() * sizeof(float)) != 0) fault("%s was written", name);
}

// Holds what sgemm_pack left of one product against the operand: by k, then m (or n), zeros behind the matrix.
void check_packed(const char* name, const Problem& p, const Pack& pack, const float* from, int64_t ld, const float* to) {
    for (int64_t at = 0; at < p.k * pack.padded; ++at) {
        const int64_t depth = at / pack.padded, i = at % pack.padded;
        const float* source = pack.is_k_major ? from + i * ld + depth : from + depth * ld + i;
        const float expected = i < pack.extent ? *source : 0.0f;
        if (memcmp(to + at, &expected, sizeof expected) != 0) {
            fault("%s is packed wrongly: element (%td, %td) is %g, not %g", name, i, depth, to[at], expected);
        }
    }
}

// An operand as sgemm reads it: itself, or its copy in the workspace, which is made here.
struct Operand {
    const float* base;
    int64_t ld, stride;
    Region region;

    Operand(const Problem& p, const Pack& pack, const Matrices& matrices, const char* name, const Stored& stored,
            const Workspace& workspace)
        : base(matrices.base()), ld(stored.ld), stride(stored.stride), region(matrices.region(name, false, true)) {
        if (pack.padded == 0) return;
        const int64_t floats = packed_floats(p.k, pack.padded);
        float* const to = workspace.packed(pack);
        const Region copy{"the packed operand", to, to + pack.products * floats, true, true};
        if (p.alpha != 0) {
            launch({static_cast<int>(pack.blocks), 1, 1, static_cast<int>(p.pack_threads),
                    static_cast<size_t>(p.pack_smem_bytes), Order(p.thread_order), Order(p.block_order),
                    static_cast<uint64_t>(p.seed), {region, copy}, "sgemm_pack"},
                   [&] { run_pack(p, pack, base, ld, to); });
            for (int64_t product = 0; packs_floats() && product < pack.products; ++product) {
                check_packed(name, p, pack, base + product * stride, ld, to + product * floats);
            }
        }
        base = to;
        ld = pack.padded;
        stride = pack.packed_stride;
        region = {name, copy.begin, copy.end, false, p.alpha != 0};
    }
};

void run(const Problem& p) {
    const bool is_read = p.alpha != 0 && p.k != 0;
    std::vector<float> packed_a = read_elements(p.a), packed_b = read_elements(p.b);
    if (!is_read) packed_a.clear(), packed_b.clear();
    const Matrices a(p.a, packed_a), b(p.b, packed_b);
    Matrices c(p.c, read_elements(p.c));
    const std::vector<float> packed_bias = read_elements(p.bias);
    const Matrices bias(p.bias, packed_bias);
    Matrices kept(p.kept, std::vector<float>(elements(p.kept), poison(GLOBAL_POISON)));
    const Workspace workspace(p);
    const Operand as_a(p, p.pack_a, a, "A", p.a, workspace), as_b(p, p.pack_b, b, "B", p.b, workspace);
    const Operands operands{as_a.base, as_a.ld,          as_a.stride, as_b.base,  as_b.ld,
                            as_b.stride, c.base(), workspace.base(), bias.base(), kept.base()};

    Launch pass{static_cast<int>(p.grid_x), static_cast<int>(p.grid_y), cluster_size(),
                static_cast<int>(p.threads), static_cast<size_t>(p.smem_bytes), Order(p.thread_order),
                Order(p.block_order), static_cast<uint64_t>(p.seed),
                {as_a.region, as_b.region, c.region("C", true, p.beta != 0), bias.region("the bias", false, true),
                 kept.region("what is kept", true, false), workspace.region()}};
    launch(pass, [&] { run_sgemm(p, operands); });
    if (p.reduce_blocks > 0) {
        pass.kernel = "sgemm_reduce";
        pass.grid_x = static_cast<int>(p.reduce_blocks);
        pass.grid_y = pass.cluster = 1;
        pass.threads = static_cast<int>(p.reduce_threads);
        pass.smem_bytes = static_cast<size_t>(p.reduce_smem_bytes);
        launch(pass, [&] { run_reduce(p, operands); });
    }

    c.check_padding("C");
    kept.check_padding("what is kept");
    check_unchanged("A", a, packed_a);
    check_unchanged("B", b, packed_b);
    check_unchanged("the bias", bias, packed_bias);
    workspace.check_counters();
    write_counts();
    for (const std::vector<float>& result : {c.packed(), kept.packed()}) {
        if (!result.empty()) fwrite(result.data(), sizeof(float), result.size(), stdout);
    }
    fflush(stdout);
}

}  // namespace

}  // namespace emulated

int main() {
    int64_t length;
    while (fread(&length, sizeof length, 1, stdin) == 1) {
        std::string name(length, ' ');
        emulated::read_all(name.data(), name.size());
        emulated::problem_name = name.c_str();
        emulated::Problem problem;
        emulated::read_all(&problem, sizeof problem);
        emulated::run(problem);
    }
    return 0;
}
