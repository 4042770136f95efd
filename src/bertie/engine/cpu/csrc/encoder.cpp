// BERT's embeddings and layers over a packed batch, in one call.
//
// The texts of a batch are cut into chunks of about CHUNK tokens, whole texts only. A chunk goes through all layers by
// itself, so its states stay in a core's own cache and threads never wait for one another. When there are fewer chunks
// than threads (one short text, say, or the last of a batch) several threads share each (Meeting, team.h): they split
// every product's columns, every row of a LayerNorm, every head.

#include "walk.h"

namespace {

constexpr int CHUNK = 192;         // tokens that go through the layers together, where there are many
constexpr int LEAST_CHUNK = 64;    // and where there are few, so that every thread has some of its own

// Whether every row of a table that a batch names is there. The caller checks too; this is what keeps reads in bounds.
bool within(const int64_t *ids, int count, int64_t rows) {
    bool all = true;
    for (int i = 0; i < count; i++) all &= (uint64_t)ids[i] < (uint64_t)rows;
    return all;
}

bool in_tables(const Model &model, const Batch &batch, int texts) {
    bool positions = !model.positions || !batch.positions || within(batch.positions, batch.tokens, model.num_positions);
    for (int text = 0; text < texts && model.positions && !batch.positions; text++)
        positions &= batch.ends[text + 1] - batch.ends[text] <= model.num_positions;
    for (int text = 0; text < texts && model.longest; text++)
        positions &= batch.ends[text + 1] - batch.ends[text] <= model.longest;
    return positions && within(batch.ids, batch.tokens, model.num_words) &&
           (batch.types ? within(batch.types, batch.tokens, model.num_types) : model.num_types > 0);
}

// Whole texts, in their order, CHUNK tokens at most unless one text alone has more.
std::vector<Chunk> cut(const int32_t *ends, int texts, int threads) {
    const int most = std::min(CHUNK, std::max(LEAST_CHUNK, ends[texts] / (2 * threads)));
    std::vector<Chunk> chunks;
    for (int text = 0; text < texts; text++) {
        const int length = ends[text + 1] - ends[text];
        if (chunks.empty() || chunks.back().tokens + length > most) chunks.push_back({text, text, ends[text], 0, 0});
        Chunk &last = chunks.back();
        last.last_text = text + 1;
        last.tokens += length;
        last.longest = std::max(last.longest, length);
    }
    return chunks;
}

// How many of a team are worth having on one chunk: the end of every step costs each of them a look at what the others
// have written, and on a large machine one of them is late now and then.
int useful(const Model &model, const Chunk &chunk, int size) {
    const int64_t share = 2 << 20;  // multiplications of one product, some 30 µs in eight bits
    const int64_t paying = (int64_t)chunk.tokens * model.padded * std::max(model.most_wide, model.padded) / share;
    return (int)std::max<int64_t>(1, std::min<int64_t>(paying, std::max(4, size / 2)));
}

}  // namespace

int forward(Model &model, Batch batch, int texts, int threads) {
    try {
        const std::unique_ptr<std::atomic<bool>[]> outside(new std::atomic<bool>[texts]());
        batch.outside = outside.get();
        if (!in_tables(model, batch, texts)) return 2;
        std::vector<Chunk> chunks = cut(batch.ends, texts, threads);
        int most = 0, longest = 0;
        for (const Chunk &chunk : chunks) {
            most = std::max(most, chunk.tokens);
            longest = std::max(longest, chunk.longest);
        }
        // Longest first, so that the last ones to finish are short.
        std::sort(chunks.begin(), chunks.end(), [](const Chunk &a, const Chunk &b) {
            return a.longest != b.longest ? a.longest > b.longest : a.first_token < b.first_token;
        });
        const int count = (int)chunks.size();
        const bool one = count == 1 && threads > 1, shared = one && model.company.pays(batch.tokens);
        if (one && !shared) threads = 1;
        const Moment began = shared ? Moment::now() : Moment{};
        const size_t attention = model.kernels->attention_scratch(longest, model.head_width);
        const size_t scratch = (std::max(attention, model.lookup ? model.lookup->scratch_size() : 0) + 15) / 16 * 16;
        // Every member takes chunks by itself, as many as the others. What then remains they share, and the last chunk
        // of each too: who is done first helps whoever is not.
        const int rest = std::min(count, count % threads + (threads > 1 ? threads : 0)), single = count - rest;
        const int alone = std::min(threads, count);
        // Nobody else is woken for one text; where there are several nodes, its members are on the caller's if they fit.
        const Team team(count == 1 ? std::min(threads, useful(model, chunks[0], threads)) : threads);
        std::vector<std::unique_ptr<Workspace>> spaces(single ? alone + rest : rest);
        // A member's own is on its node; one that members of several nodes share is on none.
        const int common = team.seats().size() > 1 ? NO_NODE : team.node(0);
        const auto node = [&](int space) { return single && space < alone ? team.node(space) : common; };
        for (int i = 0; i < (int)spaces.size(); i++)
            spaces[i] = model.take(node(i), most, i ? 0 : threads, i ? 0 : scratch);
        std::vector<std::unique_ptr<Meeting>> meetings;
        for (int i = single; i < count; i++) {
            const int each = std::max((threads + rest - 1) / rest, std::min(threads, 2));
            const int members = std::min(each, useful(model, chunks[i], threads));
            meetings.push_back(std::make_unique<Meeting>(Walk::steps(model, chunks[i].tokens), members));
        }
        std::atomic<int> next{0};
        run_team(team, [&](int member, int size) {
            float *own = spaces[0]->scratch.get() + member * spaces[0]->each;
            const int home = team.node(member);
            const bool whole = size == team.size();  // otherwise nothing is shared
            const auto take_part = [&](int which) {
                const int number = meetings[which]->join();
                if (number >= 0)
                    Walk{model, batch, chunks[single + which], *spaces[single ? alone + which : which], own, home,
                         meetings[which].get(), number}
                        .run();
            };
            if (member < alone)
                for (int mine; (mine = next.fetch_add(1)) < count;) {
                    if (whole && mine >= single)
                        take_part(mine - single);
                    else
                        Walk{model, batch, chunks[mine], *spaces[member], own, home, nullptr}.run();
                }
            for (int i = 0; whole && i < rest; i++) take_part(((int)((long)member * rest / size) + i) % rest);
        });
        if (shared) model.company.learn(batch.tokens, team.size(), began, Moment::now());
        for (int i = 0; i < (int)spaces.size(); i++) model.give_back(node(i), std::move(spaces[i]));
        const int64_t found = std::count(outside.get(), outside.get() + texts, true);
        model.texts_outside.fetch_add(found, std::memory_order_relaxed);
        return found ? 3 : 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}
