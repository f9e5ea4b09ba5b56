// Reads problems from standard input, runs each and writes its C to standard output.
//
// Per problem: the length of its name (int64), the name, the struct Problem, then A, B and C packed as
// rows of floats. A, B and C are laid out here with their leading dimensions: each in memory of its own
// that ends with the last element, with NaN between the rows. Where A and B must not be read (alpha or k
// is zero) they have no memory at all.
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

// The partial sums, NaN, and behind them the counters, zero.
class Workspace {
  public:
    explicit Workspace(const Problem& p)
        : sums_(p.sum_bytes / sizeof(float)),
          counters_(p.counter_bytes / sizeof(float)),
          floats_(new float[sums_ + counters_]) {
        for (size_t i = 0; i < sums_; ++i) floats_[i] = poison(GLOBAL_POISON);
        memset(floats_.get() + sums_, 0, counters_ * sizeof(float));
    }
    float* base() const { return floats_.get(); }
    Region region() const { return {"the workspace", base(), base() + sums_ + counters_, true, true}; }

    void check_counters() const {
        for (size_t i = 0; i < counters_; ++i) {
            unsigned counter;
            memcpy(&counter, base() + sums_ + i, sizeof counter);
            if (counter != 0) fault("counter %zu is left at %u instead of zero", i, counter);
        }
    }

  private:
    size_t sums_, counters_;
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

void run(const Problem& p) {
    const bool is_read = p.alpha != 0 && p.k != 0;
    std::vector<float> packed_a = read_floats(p.rows_a * p.cols_a);
    std::vector<float> packed_b = read_floats(p.rows_b * p.cols_b);
    if (!is_read) packed_a.clear(), packed_b.clear();
    Matrix a(p.rows_a, p.cols_a, p.lda, is_read ? p.offset_a : 0, packed_a);
    Matrix b(p.rows_b, p.cols_b, p.ldb, is_read ? p.offset_b : 0, packed_b);
    Matrix c(p.m, p.n, p.ldc, p.offset_c, read_floats(p.m * p.n));
    const Workspace workspace(p);
    const Operands operands{a.base(), b.base(), c.base(), workspace.base()};

    Launch pass{static_cast<int>(p.grid_x), static_cast<int>(p.grid_y), cluster_size(),
                static_cast<int>(p.threads), static_cast<size_t>(p.smem_bytes), Order(p.thread_order),
                Order(p.block_order), static_cast<uint64_t>(p.seed),
                {a.region("A", false, true), b.region("B", false, true), c.region("C", true, p.beta != 0),
                 workspace.region()}};
    launch(pass, [&] { run_sgemm(p, operands); });
    if (p.reduce_blocks > 0) {
        pass.grid_x = static_cast<int>(p.reduce_blocks);
        pass.grid_y = pass.cluster = 1;
        pass.threads = static_cast<int>(p.reduce_threads);
        pass.smem_bytes = 0;
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
