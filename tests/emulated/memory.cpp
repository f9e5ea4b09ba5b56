// What stands behind the primitives: shared memory with its races, copies under way, global memory.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <memory>

#include "emulator.hpp"
#include "primitives_host.hpp"

namespace emulated {

namespace {

constexpr int NEVER = -1;
constexpr int NOBODY = -1;
constexpr int SEVERAL = -2;

// Who touched one float of shared memory, and between which barriers.
struct Touch {
    int write_epoch = NEVER, writer = NOBODY;
    int read_epoch = NEVER, reader = NOBODY;
    int copier = NOBODY;  // thread whose asynchronous copy to here is under way
    int write_round = NEVER, foreign_read_round = NEVER;  // between which cluster barriers
};

struct Copy {
    float* to;
    const float* from;  // null: zeros
    int count;
};

// The asynchronous copies of one thread: groups closed by commit, oldest first, and the open one.
struct CopyQueue {
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
};

// A store to the workspace, until a fence and an atomic after it publish it to other blocks.
struct Store {
    float* address;
    int writer, epoch;
    int fence_epoch = NEVER;  // of the writer's own first fence behind it
};

struct Hidden {
    float* address;
    float value;
};

// What one running block has of its own.
struct Block {
    std::unique_ptr<float[]> shared;
    std::vector<Touch> touches;
    std::vector<CopyQueue> queues;  // by thread
    std::vector<std::vector<Store>> unpublished;  // by writer
    std::vector<int> fence_epochs;   // rising
    std::vector<int> last_fence;     // by thread
    std::vector<int> last_atomic;    // by thread
    std::vector<int> acquire_epoch;  // by thread: its first fence behind an atomic of its own
    std::vector<bool> has_acquired;  // by thread: once found to be so, it stays
    std::vector<bool> has_waited;    // by thread: for the kernels before
    bool has_barriers = false;       // of its own (tensor.cpp): then races are not looked for
    std::vector<bool> is_hidden;     // by float: stored, and not shown to tensor cores
    std::vector<std::vector<size_t>> to_show;  // by thread
    bool has_left = false;
};

const Launch* current = nullptr;
size_t shared_floats = 0;
std::vector<Block> cluster;               // the blocks that run, by rank
std::vector<Hidden> hidden;               // stores of ended blocks that nothing published
std::vector<uint8_t> block_of_workspace;  // by float: 1 + the block (mod 255) that stored it last

Block& own() { return cluster[here.rank]; }

const Region& workspace() { return current->regions.back(); }

bool is_in(const Region& region, const float* address) {
    return address >= region.begin && address < region.end;
}

void check_alignment(const float* address, int count, const char* what) {
    const size_t bytes = count * sizeof(float);
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
        fault("%s: address %p is not aligned to %zu bytes", what, static_cast<const void*>(address), bytes);
    }
}

size_t shared_index(const float* address, int count, const char* what) {
    const ptrdiff_t index = address - own().shared.get();
    if (index < 0 || static_cast<size_t>(index + count) > shared_floats) {
        fault("%s outside shared memory: floats %td ... %td of %zu", what, index, index + count - 1,
              shared_floats);
    }
    check_alignment(address, count, what);
    return index;
}

void check_idle(const Touch& touch, size_t index, const char* what) {
    if (touch.copier != NOBODY) {
        fault("copy under way: %s of shared[%zu], to which thread %d copies without having waited", what, index,
              touch.copier);
    }
}

void mark_read(size_t index, const char* what) {
    Touch& touch = own().touches[index];
    check_idle(touch, index, what);
    if (own().has_barriers) return;
    const int epoch = barrier_epoch();
    if (touch.write_epoch == epoch && touch.writer != here.thread) {
        fault("race: %s of shared[%zu], which thread %d wrote since the last barrier", what, index, touch.writer);
    }
    touch.reader = touch.read_epoch == epoch && touch.reader != here.thread ? SEVERAL : here.thread;
    touch.read_epoch = epoch;
}

void check_write(size_t index, const char* what) {
    const Touch& touch = own().touches[index];
    check_idle(touch, index, what);
    if (own().has_barriers) return;
    const int epoch = barrier_epoch();
    if (touch.write_epoch == epoch && touch.writer != here.thread) {
        fault("race: %s of shared[%zu], which thread %d wrote since the last barrier", what, index, touch.writer);
    }
    if (touch.read_epoch == epoch && touch.reader != here.thread) {
        fault("race: %s of shared[%zu], which thread %d%s read since the last barrier", what, index,
              std::max(touch.reader, 0), touch.reader == SEVERAL ? " or another" : "");
    }
    if (touch.foreign_read_round == cluster_round()) {
        fault("race: %s of shared[%zu], which another block read since the last cluster barrier", what, index);
    }
}

void mark_written(size_t index) {
    Touch& touch = own().touches[index];
    touch.write_epoch = barrier_epoch();
    touch.write_round = cluster_round();
    touch.writer = here.thread;
}

// From tensor cores, until this thread shows it.
void hide(size_t index) {
    if (!own().has_barriers) return;
    own().is_hidden[index] = true;
    own().to_show[here.thread].push_back(index);
}

void land(const std::vector<Copy>& group) {
    for (const Copy& copy : group) {
        const size_t index = copy.to - own().shared.get();
        for (int i = 0; i < copy.count; ++i) {
            copy.to[i] = copy.from ? copy.from[i] : 0.0f;
            own().touches[index + i].copier = NOBODY;
            mark_written(index + i);
        }
    }
}

const Region& region_of(const float* address, int count, const char* what) {
    if (!own().has_waited[here.thread]) fault("%s before the wait for the kernels before", what);
    for (const Region& region : current->regions) {
        if (is_in(region, address) && address + count <= region.end) return region;
    }
    for (const Region& region : current->regions) {  // just outside: name the nearest
        if (is_in(region, address) || (address + count > region.begin && address < region.begin) ||
            address == region.end) {
            fault("%s outside global memory: float %td of %s, which has %td", what, address - region.begin,
                  region.name, region.end - region.begin);
        }
    }
    fault("%s outside global memory: %p is in none of A, B, C and the workspace", what,
          static_cast<const void*>(address));
}

// Whether an atomic of the running thread tells other blocks of this store.
bool is_published(const Store& store) {
    const int now = barrier_epoch(), self = here.thread;
    if (store.fence_epoch != NEVER && (store.writer == self || store.fence_epoch < now)) return true;
    if (own().last_fence[self] > store.epoch) return true;  // seen at a barrier, then fenced by this thread
    for (int epoch : own().fence_epochs) {
        if (epoch > store.epoch && epoch < now) return true;  // the same, by another thread before a barrier
    }
    return false;
}

uint8_t block_mark() { return 1 + (here.block_y * here.grid_x + here.block_x) % 255; }

// Whether the running thread may rely on what other blocks published before an atomic of this block.
bool has_acquired() {
    Block& block = own();
    if (block.has_acquired[here.thread]) return true;
    for (size_t thread = 0; thread < block.acquire_epoch.size(); ++thread) {
        const int epoch = block.acquire_epoch[thread];
        if (epoch == NEVER) continue;
        if (static_cast<int>(thread) == here.thread || epoch < barrier_epoch()) {
            return block.has_acquired[here.thread] = true;
        }
    }
    // an atomic of another thread, a barrier, then an own fence
    for (int epoch : block.last_atomic) {
        if (epoch != NEVER && epoch < block.last_fence[here.thread]) return block.has_acquired[here.thread] = true;
    }
    return false;
}

// Gaps lie within a region, but are no part of any operand.
void check_no_gap(const Region& region, const float* address, int count, const char* what) {
    const float gap = poison(GLOBAL_POISON);
    for (int i = 0; region.has_gaps && i < count; ++i) {
        if (memcmp(address + i, &gap, sizeof gap) == 0) {
            fault("%s of a gap: float %td of %s", what, address + i - region.begin, region.name);
        }
    }
}

bool is_foreign(const float* address) {
    if (!is_in(workspace(), address)) return false;
    const uint8_t mark = block_of_workspace[address - workspace().begin];
    return mark != 0 && mark != block_mark();
}

}  // namespace

void expect_barriers() {
    Block& block = own();
    block.has_barriers = true;
    block.is_hidden.assign(shared_floats, false);
    block.to_show.assign(current->threads, {});
}

float* shared_base() { return own().shared.get(); }

void touch_shared(const float* address, int count, Access access) {
    const char* what = access == Access::READ ? "read" : "write";
    const size_t index = shared_index(address, count, what);
    for (int i = 0; i < count; ++i) {
        if (access == Access::READ) {
            mark_read(index + i, what);
        } else {
            check_write(index + i, what);
            mark_written(index + i);
            hide(index + i);
        }
    }
}

// Whoever is ahead, the same accesses are a race: what counts is the cluster barriers between them.
const float* foreign_shared(const float* address, int count, int rank) {
    const size_t index = shared_index(address, count, "read");
    if (rank < 0 || rank >= current->cluster) fault("read of block %d of a cluster of %d", rank, current->cluster);
    if (rank == here.rank) {
        touch_shared(address, count, Access::READ);
        return address;
    }
    Block& other = cluster[rank];
    if (cluster_round() == 0) fault("read of block %d, which need not have begun: no cluster barrier yet", rank);
    if (other.has_left) fault("read of block %d, which has ended", rank);
    for (size_t i = index; i < index + count; ++i) {
        Touch& touch = other.touches[i];
        check_idle(touch, i, "read");
        if (touch.write_round == cluster_round()) {
            fault("race: read of shared[%zu], which block %d wrote since the last cluster barrier", i, rank);
        }
        touch.foreign_read_round = cluster_round();
    }
    return other.shared.get() + index;
}

void touch_global(const float* address, int count, Access access) {
    const char* what = access == Access::READ ? "load" : "store";
    const Region& region = region_of(address, count, what);
    check_alignment(address, count, what);
    if (access == Access::WRITE && !region.is_writable) fault("store to %s", region.name);
    if (access == Access::WRITE) return;
    if (!region.is_readable) fault("load of %s, which must not be read", region.name);
    check_no_gap(region, address, count, what);
}

void touch_l2(const float* address, int count) {
    for (int i = 0; i < count; ++i) {
        if (is_foreign(address + i) && !has_acquired()) {
            fault("load of another block's sums with no fence between the atomic and here");
        }
    }
}

void stored_global(const float* address, int count) {
    for (int i = 0; i < count && is_in(workspace(), address); ++i) {
        own().unpublished[here.thread].push_back({const_cast<float*>(address + i), here.thread, barrier_epoch()});
        block_of_workspace[address + i - workspace().begin] = block_mark();
    }
}

void issue_copy(float* smem, const float* gmem, int count, bool is_valid) {
    const size_t index = shared_index(smem, count, "asynchronous copy");
    check_alignment(gmem, count, "asynchronous copy");
    if (is_valid) {
        const Region& region = region_of(gmem, count, "asynchronous copy");
        if (!region.is_readable) fault("asynchronous copy of %s, which must not be read", region.name);
        check_no_gap(region, gmem, count, "asynchronous copy");
    }
    for (int i = 0; i < count; ++i) {
        check_write(index + i, "asynchronous copy");
        own().touches[index + i].copier = here.thread;
        smem[i] = poison(SHARED_POISON);
    }
    own().queues[here.thread].open.push_back({smem, is_valid ? gmem : nullptr, count});
}

void commit_group() {
    CopyQueue& queue = own().queues[here.thread];
    queue.groups.push_back(std::move(queue.open));
    queue.open.clear();
}

void wait_groups(int num_pending) {
    auto& groups = own().queues[here.thread].groups;
    while (groups.size() > static_cast<size_t>(num_pending)) {
        land(groups.front());
        groups.erase(groups.begin());
    }
}

void fence() {
    Block& block = own();
    const int epoch = barrier_epoch(), self = here.thread;
    std::vector<Store>& stores = block.unpublished[self];
    for (auto store = stores.rbegin(); store != stores.rend() && store->fence_epoch == NEVER; ++store) {
        store->fence_epoch = epoch;
    }
    if (block.fence_epochs.empty() || block.fence_epochs.back() < epoch) block.fence_epochs.push_back(epoch);
    block.last_fence[self] = epoch;
    if (block.last_atomic[self] != NEVER && block.acquire_epoch[self] == NEVER) block.acquire_epoch[self] = epoch;
}

unsigned add_to_counter(unsigned* counter, unsigned amount) {
    const float* address = reinterpret_cast<const float*>(counter);
    if (&region_of(address, 1, "atomic") != &workspace()) fault("atomic outside the workspace");
    for (std::vector<Store>& stores : own().unpublished) {
        stores.erase(std::remove_if(stores.begin(), stores.end(), is_published), stores.end());
    }
    own().last_atomic[here.thread] = barrier_epoch();
    const unsigned old = *counter;
    *counter = old + amount;
    return old;
}

// Blocks run one after the other, in the order in which a GPU begins them: those before have counted.
void wait_for_counted(unsigned* counter) {
    if (add_to_counter(counter, 0) == 0) fault("it waits for a block that has not begun");
}

void show_stores() {
    for (size_t index : own().to_show[here.thread]) own().is_hidden[index] = false;
    own().to_show[here.thread].clear();
}

void check_shown(const float* address) {
    const size_t index = shared_index(address, 1, "tensor cores' read");
    if (own().is_hidden[index]) fault("tensor cores read shared[%zu], which was not shown to them", index);
}

void wait_for_launches() { own().has_waited[here.thread] = true; }

// A copy may land at any time until its wait: what was written to its place meanwhile is lost.
void poison_copies_under_way() {
    const CopyQueue& queue = own().queues[here.thread];
    const auto spoil = [](const std::vector<Copy>& group) {
        for (const Copy& copy : group) std::fill_n(copy.to, copy.count, poison(SHARED_POISON));
    };
    for (const auto& group : queue.groups) spoil(group);
    spoil(queue.open);
}

void begin_launch_memory(const Launch& launch) {
    current = &launch;
    shared_floats = launch.smem_bytes / sizeof(float);
    cluster.resize(launch.cluster);
    block_of_workspace.assign(workspace().end - workspace().begin, 0);
}

void begin_block_memory() {
    Block& block = own();
    block = {};
    block.shared.reset(new float[shared_floats]);  // exactly sized: AddressSanitizer guards both ends
    std::fill_n(block.shared.get(), shared_floats, poison(SHARED_POISON));
    block.touches.assign(shared_floats, {});
    block.queues.assign(current->threads, {});
    block.last_fence.assign(current->threads, NEVER);
    block.last_atomic.assign(current->threads, NEVER);
    block.acquire_epoch.assign(current->threads, NEVER);
    block.has_acquired.assign(current->threads, false);
    block.unpublished.assign(current->threads, {});
    block.has_waited.assign(current->threads, false);
}

void end_block_memory() {
    Block& block = own();
    for (int thread = 0; thread < current->threads; ++thread) {
        here.thread = thread;
        // those behind would no longer wait for those before
        if (!block.has_waited[thread]) fault("end of a thread that has not waited for the kernels before");
        CopyQueue& queue = block.queues[thread];
        queue.groups.push_back(std::move(queue.open));
        for (const auto& group : queue.groups) {
            for (const Copy& copy : group) {
                if (copy.from) fault("copy under way at the end: of shared[%td]", copy.to - block.shared.get());
            }
        }
    }
    for (const Touch& touch : block.touches) {
        if (touch.foreign_read_round == cluster_round() && cluster_round() > 0) {
            fault("end of a block that another read since the last cluster barrier");
        }
    }
    block.has_left = true;
    for (const std::vector<Store>& stores : block.unpublished) {
        for (const Store& store : stores) {
            hidden.push_back({store.address, *store.address});
            *store.address = poison(GLOBAL_POISON);
        }
    }
}

void end_launch_memory() {
    for (auto entry = hidden.rbegin(); entry != hidden.rend(); ++entry) *entry->address = entry->value;
    hidden.clear();
    cluster.clear();
}

}  // namespace emulated
