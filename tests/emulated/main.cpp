// Reads problems from standard input, runs each and writes its C to standard output.
//
// Per problem: the length of its name (int64), the name, the struct Problem, then A, B and C packed as
// rows of floats. A, B and C are laid out here with their leading dimensions: each in memory of its own
// that ends with the last element, with NaN between the rows. Where A and B must not be read (alpha or k
// is zero) they have no memory at all. Operands are packed before the product, as the dispatcher does it,
// with nothing else within reach; the product then reads the copies and cannot reach the originals.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "emulator.hpp"

namespace emulated {

namespace {

constexpr int64_t HUGE_FLOATS = int64_t{1} << 28;  // from here on memory is mapped, not filled
constexpr int64_t PADDING_SEEN = 64;               // floats filled at either end of the gap between rows

// A matrix in memory of its own; `packed` holds its elements row by row.
class Matrix {
  public:
    Matrix(int64_t rows, int64_t cols, int64_t ld, int64_t offset, const std::vector<float>& packed)
        : rows_(rows), cols_(cols), ld_(ld) {
        const int64_t floats = packed.empty() ? 0 : (rows - 1) * ld + cols;
        num_ = floats + offset;
        memory_ = is_mapped() ? map() : static_cast<float*>(malloc(num_ * sizeof(float)));
        base_ = memory_ + offset;
        if (floats == 0) return;
        for (int64_t row = 0; row < rows; ++row) {
            memcpy(base_ + row * ld, packed.data() + row * cols, cols * sizeof(float));
        }
        each_padding([](float& at) { at = poison(GLOBAL_POISON); });
    }
    Matrix(const Matrix&) = delete;
    ~Matrix() {
        if (is_mapped()) {
            munmap(memory_, num_ * sizeof(float));
        } else {
            free(memory_);
        }
    }

    float* base() const { return base_; }
    Region region(const char* name, bool is_writable, bool is_readable) const {
        return {name, base_, memory_ + num_, is_writable, is_readable};
    }

    std::vector<float> packed() const {
        std::vector<float> elements(rows_ * cols_);
        for (int64_t row = 0; row < rows_; ++row) {
            memcpy(elements.data() + row * cols_, base_ + row * ld_, cols_ * sizeof(float));
        }
        return elements;
    }

    void check_padding(const char* name) {
        const float expected = poison(GLOBAL_POISON);
        each_padding([&](float& at) {
            if (memcmp(&at, &expected, sizeof at) != 0) {
                fault("padding of %s overwritten: element %td of row %td", name, (&at - base_) % ld_,
                      (&at - base_) / ld_);
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
        const int64_t gap = ld_ - cols_;
        for (int64_t row = 0; row + 1 < rows_ && gap > 0; ++row) {
            float* begin = base_ + row * ld_ + cols_;
            for (int64_t i = 0; i < gap; ++i) {
                if (i == PADDING_SEEN && gap > 2 * PADDING_SEEN) i = gap - PADDING_SEEN;
                visit(begin[i]);
            }
        }
    }

    int64_t rows_, cols_, ld_, num_;
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

std::vector<float> read_floats(int64_t count) {
    std::vector<float> floats(count);
    read_all(floats.data(), floats.size() * sizeof(float));
    return floats;
}

void check_unchanged(const char* name, const Matrix& matrix, const std::vector<float>& before) {
    if (before.empty()) return;
    const std::vector<float> after = matrix.packed();
    if (memcmp(after.data(), before.data(), before.size() * sizeof(float)) != 0) fault("%s was written", name);
}

// Holds what sgemm_pack left against the operand: by k, then m (or n), zeros behind the matrix.
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
    int64_t ld;
    Region region;

    Operand(const Problem& p, const Pack& pack, const Matrix& matrix, const char* name, int64_t lead,
            const Workspace& workspace)
        : base(matrix.base()), ld(lead), region(matrix.region(name, false, true)) {
        if (pack.padded == 0) return;
        float* const to = workspace.packed(pack);
        const Region copy{"the packed operand", to, to + p.k * pack.padded, true, true};
        if (p.alpha != 0) {
            launch({static_cast<int>(pack.blocks), 1, 1, static_cast<int>(p.pack_threads),
                    static_cast<size_t>(p.pack_smem_bytes), Order(p.thread_order), Order(p.block_order),
                    static_cast<uint64_t>(p.seed), {region, copy}},
                   [&] { run_pack(p, pack, base, ld, to); });
            check_packed(name, p, pack, base, ld, to);
        }
        base = to;
        ld = pack.padded;
        region = {name, copy.begin, copy.end, false, p.alpha != 0};
    }
};

void run(const Problem& p) {
    const bool is_read = p.alpha != 0 && p.k != 0;
    std::vector<float> packed_a = read_floats(p.rows_a * p.cols_a);
    std::vector<float> packed_b = read_floats(p.rows_b * p.cols_b);
    if (!is_read) packed_a.clear(), packed_b.clear();
    Matrix a(p.rows_a, p.cols_a, p.lda, is_read ? p.offset_a : 0, packed_a);
    Matrix b(p.rows_b, p.cols_b, p.ldb, is_read ? p.offset_b : 0, packed_b);
    Matrix c(p.m, p.n, p.ldc, p.offset_c, read_floats(p.m * p.n));
    const Workspace workspace(p);
    const Operand as_a(p, p.pack_a, a, "A", p.lda, workspace), as_b(p, p.pack_b, b, "B", p.ldb, workspace);
    const Operands operands{as_a.base, as_a.ld, as_b.base, as_b.ld, c.base(), workspace.base()};

    Launch pass{static_cast<int>(p.grid_x), static_cast<int>(p.grid_y), cluster_size(),
                static_cast<int>(p.threads), static_cast<size_t>(p.smem_bytes), Order(p.thread_order),
                Order(p.block_order), static_cast<uint64_t>(p.seed),
                {as_a.region, as_b.region, c.region("C", true, p.beta != 0), workspace.region()}};
    launch(pass, [&] { run_sgemm(p, operands); });
    if (p.reduce_blocks > 0) {
        pass.grid_x = static_cast<int>(p.reduce_blocks);
        pass.grid_y = pass.cluster = 1;
        pass.threads = static_cast<int>(p.reduce_threads);
        pass.smem_bytes = static_cast<size_t>(p.reduce_smem_bytes);
        launch(pass, [&] { run_reduce(p, operands); });
    }

    c.check_padding("C");
    check_unchanged("A", a, packed_a);
    check_unchanged("B", b, packed_b);
    workspace.check_counters();
    const std::vector<float> result = c.packed();
    fwrite(result.data(), sizeof(float), result.size(), stdout);
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
