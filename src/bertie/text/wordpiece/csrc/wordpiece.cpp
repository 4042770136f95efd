// Texts to word pieces, as reference.py tells it, for many texts in one call.
//
// What a character becomes (nothing, a space, a word of its own, letters) is looked up in tables of 256 characters that
// the caller makes with the reference when they are first wanted; nothing about Unicode is known here. What needs more
// than its character to be known (special tokens, marks that have to be sorted) is left to the caller, text by text.
//
// Pieces are kept in a trie: from one root those that begin a word, from the other those that continue one. An edge is an
// entry of one hash table under (node, byte). Walking as far as edges go and going back to the last node that ends a piece
// finds the longest one. Most words are a piece of at most eight bytes: those are looked up whole, in a table of their own.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Kind : uint8_t { LETTERS = 0, REMOVED = 1, SPACE = 2, WORD = 3, HARD = 4 };

struct Entry {  // what a character becomes; in this order in native.py
    uint8_t kind;
    uint8_t size;   // bytes of `out`
    uint8_t chars;  // characters of `out`
    char out[13];   // UTF-8
};
static_assert(sizeof(Entry) == 16, "");

constexpr int PAGES = 0x110000 / 256;
constexpr int32_t NOWHERE = -1;
constexpr int64_t LEFT = -1, LACKS_PAGE = -2;  // instead of a length

// Pieces of at most eight bytes that begin a word. No piece has a zero in it, so eight bytes tell its length as well.
class ShortWords {
public:
    static constexpr int LONGEST = 8;

    void add(const char* piece, size_t size, int32_t id) {
        if (2 * ++words_ > table_.size()) {
            std::vector<Word> old(2 * table_.size());
            old.swap(table_);
            --shift_;
            for (const Word& word : old)
                if (word.bytes) put(word);
        }
        Word made;
        memcpy(&made.bytes, piece, size);
        made.id = id;
        put(made);
    }

    // The piece that is these bytes, zeros behind it.
    int32_t find(const char* eight) const {
        uint64_t bytes;
        memcpy(&bytes, eight, sizeof bytes);
        for (size_t k = place(bytes);; k = (k + 1) & (table_.size() - 1)) {
            if (table_[k].bytes == bytes) return table_[k].id;
            if (!table_[k].bytes) return NOWHERE;
        }
    }

private:
    struct Word {
        uint64_t bytes = 0;  // 0: none
        int32_t id = NOWHERE;
    };

    size_t place(uint64_t bytes) const { return (bytes * 0x9E3779B97F4A7C15u) >> shift_; }

    void put(Word word) {
        size_t k = place(word.bytes);
        while (table_[k].bytes && table_[k].bytes != word.bytes) k = (k + 1) & (table_.size() - 1);
        table_[k] = word;
    }

    std::vector<Word> table_ = std::vector<Word>(1 << 10);
    size_t words_ = 0;
    int shift_ = 54;  // 64 less the table's bits
};

class Trie {
public:
    Trie() : ids_(2, NOWHERE), table_(1 << 10) {}

    void add(int32_t root, const char* piece, size_t size, int32_t id) {
        int32_t node = root;
        for (size_t k = 0; k < size; ++k) {
            int32_t next = step(node, uint8_t(piece[k]));
            if (next == NOWHERE) {
                next = int32_t(ids_.size());
                ids_.push_back(NOWHERE);
                insert(node, uint8_t(piece[k]), next);
            }
            node = next;
        }
        ids_[node] = id;
    }

    // The longest piece that [from, end) begins with: its id, and where it ends.
    int32_t longest(int32_t root, const char* from, const char* end, const char** stop) const {
        int32_t found = NOWHERE, node = root;
        for (const char* at = from; at < end;) {
            node = step(node, uint8_t(*at++));
            if (node == NOWHERE) break;
            if (ids_[node] != NOWHERE) found = ids_[node], *stop = at;
        }
        return found;
    }

private:
    struct Edge {
        uint32_t key = 0;  // 0 is no edge: nothing leads to a root
        int32_t to = NOWHERE;
    };

    static uint32_t key_of(int32_t node, uint8_t byte) { return (uint32_t(node) + 1) << 8 | byte; }
    size_t place(uint32_t key) const { return (key * 0x9E3779B1u) >> shift_; }

    int32_t step(int32_t node, uint8_t byte) const {
        const uint32_t key = key_of(node, byte);
        for (size_t k = place(key);; k = (k + 1) & (table_.size() - 1)) {
            if (table_[k].key == key) return table_[k].to;
            if (table_[k].key == 0) return NOWHERE;
        }
    }

    void insert(int32_t node, uint8_t byte, int32_t to) {
        if (5 * ++edges_ > 4 * table_.size()) {
            std::vector<Edge> old(2 * table_.size());
            old.swap(table_);
            --shift_;
            for (const Edge& edge : old)
                if (edge.key) put(edge);
        }
        put({key_of(node, byte), to});
    }

    void put(Edge edge) {
        size_t k = place(edge.key);
        while (table_[k].key) k = (k + 1) & (table_.size() - 1);
        table_[k] = edge;
    }

    std::vector<int32_t> ids_;  // per node: the piece that ends there
    std::vector<Edge> table_;
    size_t edges_ = 0;
    int shift_ = 22;  // 32 less the table's bits
};

struct Vocabulary {
    ShortWords short_words;
    Trie trie;
    Trie added;  // tokens that are found in the raw text
    bool begins_added[256] = {};
    int32_t unknown, word_limit;
    std::atomic<const Entry*> pages[PAGES];

    Vocabulary() {
        for (auto& page : pages) page.store(nullptr, std::memory_order_relaxed);
    }
    ~Vocabulary() {
        for (auto& page : pages) delete[] page.load(std::memory_order_relaxed);
    }
    Vocabulary(const Vocabulary&) = delete;
    Vocabulary& operator=(const Vocabulary&) = delete;

    bool added_at(const char* at, const char* end) const {
        return begins_added[uint8_t(*at)] && added.longest(0, at, end, &at) != NOWHERE;
    }
};

// One character of valid UTF-8.
inline uint32_t next_char(const char*& at) {
    const uint8_t* byte = reinterpret_cast<const uint8_t*>(at);
    if (byte[0] < 0x80) return ++at, byte[0];
    if (byte[0] < 0xE0) return at += 2, (byte[0] & 0x1Fu) << 6 | (byte[1] & 0x3Fu);
    if (byte[0] < 0xF0) return at += 3, (byte[0] & 0x0Fu) << 12 | (byte[1] & 0x3Fu) << 6 | (byte[2] & 0x3Fu);
    at += 4;
    return (byte[0] & 0x07u) << 18 | (byte[1] & 0x3Fu) << 12 | (byte[2] & 0x3Fu) << 6 | (byte[3] & 0x3Fu);
}

// Where ids came from, along the ids: characters `start` to `end` of the text, and which of its words.
struct Trace {
    int32_t *start, *end, *word;
};

// TRACED: whether traces are written.
template <bool TRACED>
class Writer {
public:
    Writer(const Vocabulary& vocabulary, uint8_t* wanted)
        : vocabulary_(vocabulary),
          wanted_(wanted),
          word_(size_t(vocabulary.word_limit) * 4 + sizeof(Entry)),
          origin_(TRACED ? word_.size() : 0) {}

    // At most `room` ids of a text from `out` on: how many, or LEFT or LACKS_PAGE.
    int64_t text(const char* at, const char* end, int64_t* out, Trace trace, int64_t room) {
        begin_ = out, trace_ = trace;
        made_ = 0, room_ = room;
        size_ = chars_ = 0;
        number_ = 0;
        bool lacks = false;
        for (index_ = 0; at < end && made_ < room_; ++index_) {
            if (vocabulary_.added_at(at, end)) return LEFT;
            const uint32_t code = next_char(at);
            const Entry* page = vocabulary_.pages[code >> 8].load(std::memory_order_acquire);
            if (!page) {
                wanted_[code >> 8] = 1, lacks = true;
                continue;
            }
            const Entry& entry = page[code & 255];
            switch (entry.kind) {
                case LETTERS: letters(entry); break;
                case SPACE: word(); break;
                case WORD: word(), letters(entry), word(); break;
                case REMOVED: break;
                default: return LEFT;
            }
        }
        if (lacks) return LACKS_PAGE;
        word();
        return made_;
    }

private:
    void letters(const Entry& entry) {
        if (TRACED && !chars_) first_ = index_;
        last_ = index_;
        chars_ += entry.chars;
        if (chars_ > vocabulary_.word_limit) return;  // too long to be spelled
        memcpy(word_.data() + size_, entry.out, sizeof entry.out);
        if (TRACED)
            for (int k = 0; k < entry.size; ++k) origin_[size_ + k] = index_;
        size_ += entry.size;
    }

    void put(int32_t id, int32_t start, int32_t end) {
        if (made_ == room_) return;
        begin_[made_] = id;
        if (TRACED) trace_.start[made_] = start, trace_.end[made_] = end + 1, trace_.word[made_] = number_;
        ++made_;
    }

    void word() {
        if (!chars_) return;
        spell(chars_ > vocabulary_.word_limit);
        size_ = chars_ = 0;
        ++number_;
    }

    void spell(bool too_long) {
        if (too_long) return put(vocabulary_.unknown, first_, last_);
        const char *begin = word_.data(), *at = begin, *end = begin + size_;
        if (size_ <= ShortWords::LONGEST) {  // behind the letters are zeros, those of the last entry
            const int32_t id = vocabulary_.short_words.find(begin);
            if (id != NOWHERE) return put(id, first_, last_);
        }
        const int64_t before = made_;
        for (int32_t root = 0; at < end; root = 1) {
            const char *from = at, *stop = at;
            const int32_t id = vocabulary_.trie.longest(root, from, end, &stop);
            if (id == NOWHERE) {
                made_ = before;
                return put(vocabulary_.unknown, first_, last_);
            }
            at = stop;
            put(id, TRACED ? origin_[from - begin] : 0, TRACED ? origin_[stop - begin - 1] : 0);
        }
    }

    const Vocabulary& vocabulary_;
    uint8_t* wanted_;
    std::vector<char> word_;       // the word so far; room for one entry more than the longest
    std::vector<int32_t> origin_;  // the character that each byte of it came from
    int32_t size_ = 0, chars_ = 0, number_ = 0, index_ = 0, first_ = 0, last_ = 0;
    int64_t made_ = 0, room_ = 0;
    int64_t* begin_ = nullptr;
    Trace trace_ = {};
};

template <bool TRACED>
int64_t encode(const Vocabulary& vocabulary, const char* texts, int64_t count, const int64_t* before, int64_t num_before,
               const int64_t* after, int64_t num_after, int64_t room, int64_t* ids, Trace trace, int64_t capacity,
               int64_t* lengths, uint8_t* wanted) {
    Writer<TRACED> writer(vocabulary, wanted);
    int64_t used = 0;
    for (int64_t k = 0; k < count; ++k) {
        const char* end = texts + strlen(texts);
        const int64_t left = capacity - used - num_before - num_after, at = used + num_before;
        if (left < 0) return -1;
        const Trace here = TRACED ? Trace{trace.start + at, trace.end + at, trace.word + at} : trace;
        const int64_t made = writer.text(texts, end, ids + at, here, room < left ? room : left);
        texts = end + 1;
        lengths[k] = made;
        if (made < 0) continue;
        if (made == left && left < room) return -1;  // there may have been more
        memcpy(ids + used, before, size_t(num_before) * sizeof *ids);
        memcpy(ids + at + made, after, size_t(num_after) * sizeof *ids);
        lengths[k] += num_before + num_after;
        used += lengths[k];
    }
    return used;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int bertie_wordpiece_version() { return 2; }

// `pieces` and `added` are texts one after the other, each with a 0 behind it.
EXPORT void* bertie_wordpiece_new(const char* pieces, const int32_t* ids, int64_t count, const char* prefix, const char* added,
                                  int64_t added_count, int32_t unknown, int32_t word_limit) {
    auto* made = new Vocabulary;
    made->unknown = unknown;
    made->word_limit = word_limit;
    const size_t prefix_size = strlen(prefix);
    for (int64_t k = 0; k < count; ++k) {
        const size_t size = strlen(pieces);
        if (size) made->trie.add(0, pieces, size, ids[k]);
        if (size && size <= ShortWords::LONGEST) made->short_words.add(pieces, size, ids[k]);
        if (size > prefix_size && !memcmp(pieces, prefix, prefix_size))
            made->trie.add(1, pieces + prefix_size, size - prefix_size, ids[k]);
        pieces += size + 1;
    }
    for (int64_t k = 0; k < added_count; ++k) {
        const size_t size = strlen(added);
        made->added.add(0, added, size, 0);
        made->begins_added[uint8_t(*added)] = true;
        added += size + 1;
    }
    return made;
}

EXPORT void bertie_wordpiece_free(void* vocabulary) { delete static_cast<Vocabulary*>(vocabulary); }

// The 256 entries of a page. Whoever has seen a page keeps seeing it, so a second one for the same place is not taken.
EXPORT void bertie_wordpiece_page(void* vocabulary, int32_t number, const Entry* entries) {
    auto* copy = new Entry[256];
    memcpy(copy, entries, 256 * sizeof(Entry));
    const Entry* none = nullptr;
    if (!static_cast<Vocabulary*>(vocabulary)->pages[number].compare_exchange_strong(none, copy)) delete[] copy;
}

// `count` texts, each with a 0 behind it, to ids, each with `before` before it and `after` after it. `room` is how many
// ids a text may have between those. `lengths` gets how many each has in all; LEFT where the text is left to the caller,
// LACKS_PAGE where pages have to be made first (those that are 1 in `wanted`); such a text has no ids. `starts`, `ends` and
// `words` get the traces of the ids of texts, or are null. The answer is the number of all ids, or -1 where there is no
// room (`capacity`) for them.
EXPORT int64_t bertie_wordpiece_encode(const void* vocabulary, const char* texts, int64_t count, const int64_t* before,
                                       int64_t num_before, const int64_t* after, int64_t num_after, int64_t room, int64_t* ids,
                                       int32_t* starts, int32_t* ends, int32_t* words, int64_t capacity, int64_t* lengths,
                                       uint8_t* wanted) {
    const auto& known = *static_cast<const Vocabulary*>(vocabulary);
    const Trace trace = {starts, ends, words};
    return (starts ? encode<true> : encode<false>)(known, texts, count, before, num_before, after, num_after, room, ids, trace,
                                                   capacity, lengths, wanted);
}
