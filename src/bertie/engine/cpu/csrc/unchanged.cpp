// Whether PyTorch's tensors are what they were (engine/source.py says why). PyTorch answers through two of its own
// functions, which the caller looks up by name, so nothing of it is needed to build this.

#include <cstdint>
#include <cstring>

struct Watched {
    const void *tensor;  // an at::Tensor
    int64_t version;     // −1: it has none
    const void *address;
    const char *sample;  // somewhere in the tensor's memory; null: not looked at
    int64_t size;        // of the sample
    char sampled[64];    // what was there
};

extern "C" __attribute__((visibility("default"))) int bertie_unchanged(const Watched *all, int count,
                                                                       int64_t (*version_of)(const void *),
                                                                       int (*address_of)(const void *, const void **)) {
    try {
        for (int i = 0; i < count; i++) {
            const Watched &one = all[i];
            const void *address = nullptr;
            // The sample comes last: its memory is the tensor's only as long as the address is.
            if (address_of(one.tensor, &address) || address != one.address ||
                (one.version >= 0 && version_of(one.tensor) != one.version) ||
                (one.sample && std::memcmp(one.sample, one.sampled, one.size)))
                return 0;
        }
        return 1;
    } catch (...) {
        return 0;  // it has no version any more
    }
}
