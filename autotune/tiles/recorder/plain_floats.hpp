// For kernels/reference.cu, which reads and writes A, B and C without primitives: a float that tells so itself.
#pragma once

#include "primitives_host.hpp"

namespace recorded {

template <class Type> struct OnlyInt {};
template <> struct OnlyInt<int> {
    using Found = int;
};

struct Float {
    float value;

    Float() = default;
    template <class Type, typename OnlyInt<Type>::Found = 0> Float(Type number) : value(number) {}
    operator float() const {
        if (is_operand(this)) global(this, 1, LOAD, {"reference.cu", 0});
        return value_of(this);
    }
    Float& operator=(float number) {
        if (is_operand(this)) {
            global(this, 1, STORE, {"reference.cu", 0});
        } else {
            value = number;
        }
        return *this;
    }

  private:
    static float value_of(const Float* at) { return is_operand(at) ? 0 : at->value; }
};

}  // namespace recorded

template <int VEC> inline Vec<VEC> load_shared(const recorded::Float* from, recorded::Site site = recorded::Site::of()) {
    return load_shared<VEC>(&from->value, site);
}
template <int VEC>
inline void store_shared(recorded::Float* to, Vec<VEC> value, recorded::Site site = recorded::Site::of()) {
    store_shared<VEC>(&to->value, value, site);
}
inline recorded::Float* shared_floats() { return reinterpret_cast<recorded::Float*>(shared_memory()); }
