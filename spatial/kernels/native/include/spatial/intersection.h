// Which tiles a Gaussian's visible ellipse touches, exactly (Hanson 2025, "Speedy-Splat", AccuTile): for a band of tile
// rows the ellipse {log2 alpha ≥ log2 1/255} spans one interval of x, whose ends lie at the ellipse's own extreme or at
// the band's edge nearest to it.
#pragma once

#include "spatial/blending.h"

namespace spatial {

constexpr int kTileSize = 16;

// First and one-past-last index of tiles (or tile rows) whose pixel centres lie in [low, high].
struct TileRange {
    int begin, end;
};

template <class T>
SPATIAL_HD TileRange tiles_between(T low, T high, int num_tiles) {
    const T margin(1e-3);  // pixels: rounding may add a tile that receives nothing, never lose one
    const T first = ceil(low - T(0.5) - margin), last = floor(high - T(0.5) + margin);
    const T limit = T(num_tiles) * kTileSize;
    if (!(last >= 0 && first < limit && first <= last)) return {0, 0};
    return {int(first > 0 ? first : T(0)) / kTileSize, int(last < limit - 1 ? last : limit - 1) / kTileSize + 1};
}

template <class T>
struct VisibleEllipse {
    T mean_x, mean_y;
    Falloff<T> falloff;
    T reach_y;        // half extent in y
    T slope;          // of the line through the points of extreme x: dy = slope · dx … at x = mean.x ± reach_x
    T reach_x;

    SPATIAL_HD VisibleEllipse(T x, T y, const T conic[3], T opacity)
        : mean_x(x), mean_y(y), falloff(falloff_from_conic(conic, T(log2(opacity)))) {
        const T threshold = 2 * (falloff.log2_opacity - T(kLog2MinAlpha)) / T(kLog2E);  // conic form ≤ this
        const T det = conic[0] * conic[2] - conic[1] * conic[1];
        reach_x = sqrt(threshold > 0 ? threshold * conic[2] / det : T(0));
        reach_y = sqrt(threshold > 0 ? threshold * conic[0] / det : T(0));
        slope = -conic[1] / conic[2];
    }

    SPATIAL_HD TileRange rows(int num_rows) const {
        return tiles_between(mean_y - reach_y, mean_y + reach_y, num_rows);
    }

    // Tiles of one row of tiles that the ellipse touches.
    SPATIAL_HD TileRange columns(int row, int num_columns) const {
        const T top = row * kTileSize + T(0.5) - mean_y, bottom = top + (kTileSize - 1);
        const T low = edge(-slope * reach_x, top, bottom, T(-1)), high = edge(slope * reach_x, top, bottom, T(1));
        return tiles_between(mean_x + low, mean_x + high, num_columns);
    }

  private:
    // The ellipse's extreme x (relative to the mean) within y in [top, bottom], on the side given by `sign`.
    SPATIAL_HD T edge(T y_of_extreme, T top, T bottom, T sign) const {
        if (top <= y_of_extreme && y_of_extreme <= bottom) return sign * reach_x;
        T y = y_of_extreme < top ? top : y_of_extreme > bottom ? bottom : y_of_extreme;
        y = y < -reach_y ? -reach_y : y > reach_y ? reach_y : y;
        const Span<T> span = visible_span(falloff, T(-0.5) / falloff.xx, -y);  // its argument is mean.y - y
        return span.centre + sign * (span.reach > 0 ? span.reach : T(0));
    }
};

}  // namespace spatial
