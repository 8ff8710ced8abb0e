// Nearest neighbours by a balanced k-d tree (Bentley 1975). Splits at the median *position* keep it balanced whatever the
// points are: far outliers, points on a line, all points the same.
#include "nearest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pool.h"

namespace spatial {
namespace {

constexpr int64_t kLeafSize = 8;

template <class Real>
Real squared_length(const Real d[3]) {
    return d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
}

// Node j of level l holds the points of positions [N·j >> l, N·(j + 1) >> l), so the tree needs no pointers.
template <class Real>
class Tree {
  public:
    struct Point {
        Real position[3];
        int32_t id;
    };
    struct Split {
        Real value;
        int axis;
    };

    Tree(const Real* points, int64_t num_points) : points_(num_points) {
        for (int64_t i = 0; i < num_points; ++i)
            points_[i] = {{points[3 * i], points[3 * i + 1], points[3 * i + 2]}, int32_t(i)};
        while (num_points >> depth_ > kLeafSize) ++depth_;
        splits_.resize(int64_t(1) << depth_);
        for (int level = 0; level < depth_; ++level)
            parallel_for(int64_t(1) << level, [&](int64_t node) { split(level, node); });
    }

    const Point& point(int64_t at) const { return points_[at]; }
    int64_t begin(int level, int64_t node) const { return int64_t(points_.size()) * node >> level; }

    // Keeps in `best` (ascending) the least squared distances from the point at `query` to the others.
    void search(int64_t query, std::vector<Real>& best) const {
        const Real offset[3] = {0, 0, 0};
        search(0, 0, query, offset, best);
    }

  private:
    std::vector<Point> points_;
    std::vector<Split> splits_;  // of node j in level l: at 2^l + j
    int depth_ = 0;

    int widest_axis(int64_t first, int64_t last) const {
        Real low[3], high[3];
        for (int axis = 0; axis < 3; ++axis) low[axis] = high[axis] = points_[first].position[axis];
        for (int64_t i = first; i < last; ++i)
            for (int axis = 0; axis < 3; ++axis) {
                low[axis] = std::min(low[axis], points_[i].position[axis]);
                high[axis] = std::max(high[axis], points_[i].position[axis]);
            }
        int widest = 0;
        for (int axis = 1; axis < 3; ++axis)
            if (high[axis] - low[axis] > high[widest] - low[widest]) widest = axis;
        return widest;
    }

    void split(int level, int64_t node) {
        const int64_t first = begin(level, node), middle = begin(level + 1, 2 * node + 1), last = begin(level, node + 1);
        const int axis = widest_axis(first, last);
        std::nth_element(points_.begin() + first, points_.begin() + middle, points_.begin() + last,
                         [axis](const Point& a, const Point& b) { return a.position[axis] < b.position[axis]; });
        splits_[(int64_t(1) << level) + node] = {points_[middle].position[axis], axis};
    }

    // offset: from the query to the node's cell, by axis; what lies in the cell is at least that far.
    void search(int level, int64_t node, int64_t query, const Real offset[3], std::vector<Real>& best) const {
        if (level == depth_) return scan(begin(level, node), begin(level, node + 1), query, best);
        const Split& split = splits_[(int64_t(1) << level) + node];
        const Real difference = points_[query].position[split.axis] - split.value;
        const int64_t near = 2 * node + (difference >= 0);
        search(level + 1, near, query, offset, best);
        Real beyond[3] = {offset[0], offset[1], offset[2]};
        beyond[split.axis] = difference;
        if (squared_length(beyond) < best.back()) search(level + 1, near ^ 1, query, beyond, best);
    }

    void scan(int64_t first, int64_t last, int64_t query, std::vector<Real>& best) const {
        const Real* q = points_[query].position;
        for (int64_t i = first; i < last; ++i) {
            const Real* p = points_[i].position;
            const Real difference[3] = {q[0] - p[0], q[1] - p[1], q[2] - p[2]};
            const Real squared = squared_length(difference);
            if (!(squared < best.back()) || i == query) continue;
            size_t at = best.size() - 1;
            for (; at > 0 && best[at - 1] > squared; --at) best[at] = best[at - 1];
            best[at] = squared;
        }
    }
};

}  // namespace

template <class Real>
void nearest_distances(int64_t num_points, int64_t k, const Real* points, Real* distances) {
    if (num_points == 0 || k == 0) return;
    const Tree<Real> tree(points, num_points);
    parallel_ranges(num_points, 1024, [&](int64_t begin, int64_t end) {  // in the tree's order: neighbours stay cached
        std::vector<Real> best(k);
        for (int64_t at = begin; at < end; ++at) {
            std::fill(best.begin(), best.end(), std::numeric_limits<Real>::infinity());
            tree.search(at, best);
            Real* row = distances + tree.point(at).id * k;
            for (int64_t i = 0; i < k; ++i) row[i] = std::sqrt(best[i]);
        }
    });
}

template void nearest_distances(int64_t, int64_t, const float*, float*);
template void nearest_distances(int64_t, int64_t, const double*, double*);

}  // namespace spatial
