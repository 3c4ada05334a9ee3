//! Learned models: piecewise linear functions that predict the page of a key (COLE, Definition 1,
//! Algorithm 2).
//!
//! A point is a key, as a number, and a page. All lines within epsilon of the points so far are
//! represented by two hulls, the steepest and the flattest of these lines (O'Rourke 1981). A point
//! costs O(1) on average, and the arithmetic is exact. If a new point leaves no line, the model of
//! the points before it is complete.

use alloy_primitives::Uint;
use retrie_state::BackendKey;
use std::cmp::Ordering;

/// The longest key in bytes: the key of a slot.
pub(crate) const MAX_KEY: usize = BackendKey::MAX_ENCODED_LEN;
/// Bytes of a key that models see: all of a plain one, and of a hashed slot 20 bytes, so that two
/// keys are equal here only if 160 bits of two hashes are.
const SEEN: usize = 53;
/// Bytes of a compound key as a number: key and block.
pub(crate) const NUMBER: usize = SEEN + 8;
/// Bytes of an encoded model.
pub(crate) const MODEL: usize = NUMBER + 2 + 8 + 2 + 5 + 5;

/// Positions are counted in parts of a page: this number of parts is one page.
pub(super) const PARTS: u64 = 1 << 14;
/// Parts in a unit of epsilon.
const EPSILON_UNIT: u64 = PARTS / 64;
/// Most points of a hull, 80 bytes each. All keys along a curve are on the hull, so there must be a
/// bound.
const MAX_HULL: usize = 1 << 14;
/// The error that rounding may add to a model, in parts: see [`OpenModel::model`].
const MARGIN: u64 = 4;

/// Wide enough for differences of keys (488 bits) times differences of positions (55 bits).
type WideInt = Uint<576, 9>;

/// A compound key as a big-endian number: the key, padded with zeros, and the block. Bytes and
/// numbers have the same order.
///
/// The order is right if no two keys have the same seen bytes, and none is a prefix of another.
pub(crate) fn number(key: &[u8], block: u64) -> [u8; NUMBER] {
    let mut number = [0; NUMBER];
    let len = key.len().min(SEEN);
    number[..len].copy_from_slice(&key[..len]);
    number[SEEN..].copy_from_slice(&block.to_be_bytes());
    number
}

fn wide(number: &[u8; NUMBER]) -> WideInt {
    // A compound key has 61 bytes, `WideInt` has 72.
    WideInt::try_from_be_slice(number).unwrap_or_default()
}

/// Predicts the pages of the keys from its first key up to the first key of the next model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LearnedModel {
    /// Its first key.
    pub(crate) first: [u8; NUMBER],
    /// Where the line is at the first key, relative to the start of the first page, in parts of a
    /// page.
    offset: i16,
    /// The line rises by `slope / 2^shift` parts per key.
    slope: u64,
    shift: u16,
    first_page: u64,
    /// The page of the last key that the model was made from.
    last_page: u64,
}

impl LearnedModel {
    /// The predicted page of a key: exact, one too low or one too high. Increases with the key.
    pub(crate) fn page(&self, key: &[u8; NUMBER]) -> u64 {
        if self.slope == 0 || *key <= self.first {
            return self.first_page;
        }
        let rise = wide(key) - wide(&self.first);
        // 488 and 64 bits: the product fits.
        let rise = (rise * WideInt::from(self.slope)) >> usize::from(self.shift);
        let limit = (self.last_page - self.first_page + 1).saturating_mul(PARTS);
        let rise = u64::try_from(rise).unwrap_or(u64::MAX).min(2 * limit);
        let parts = rise.saturating_add_signed(self.offset.into());
        (self.first_page + parts / PARTS).min(self.last_page)
    }

    /// The exact position of the line, in parts of a page.
    #[cfg(test)]
    pub(super) fn exact(&self, key: &[u8; NUMBER]) -> i128 {
        let rise = (wide(key) - wide(&self.first)) * WideInt::from(self.slope);
        let rise = u64::try_from(rise >> usize::from(self.shift)).unwrap();
        i128::from(self.first_page * PARTS) + i128::from(self.offset) + i128::from(rise)
    }

    /// Appends the encoding, [`MODEL`] bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first);
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.slope.to_be_bytes());
        out.extend_from_slice(&self.shift.to_be_bytes());
        out.extend_from_slice(&self.first_page.to_be_bytes()[3..]);
        out.extend_from_slice(&self.last_page.to_be_bytes()[3..]);
    }

    /// Decodes the bytes of [`encode`](Self::encode).
    pub(crate) fn decode(bytes: &[u8; MODEL]) -> Option<Self> {
        let (first, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (slope, rest) = rest.split_first_chunk()?;
        let (shift, rest) = rest.split_first_chunk()?;
        let page = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let model = Self {
            first: *first,
            offset: i16::from_be_bytes(*offset),
            slope: u64::from_be_bytes(*slope),
            shift: u16::from_be_bytes(*shift),
            first_page: page(&rest[..5]),
            last_page: page(&rest[5..]),
        };
        (model.first_page <= model.last_page && model.shift < 576).then_some(model)
    }
}

#[derive(Clone, Copy, Debug)]
struct KeyPoint {
    /// Relative to the first key of the model.
    x: WideInt,
    /// Relative to the first page of the model, raised by twice epsilon, so that it is positive.
    y: u64,
}

/// The slope from one point to a later one. It is positive: pages differ by at least one, and
/// points are moved by less than half a page.
#[derive(Clone, Copy)]
struct LineSlope {
    dx: WideInt,
    dy: u64,
}

impl LineSlope {
    fn new(from: &KeyPoint, to: &KeyPoint) -> Self {
        debug_assert!(to.x > from.x && to.y > from.y);
        Self { dx: to.x - from.x, dy: to.y - from.y }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        (WideInt::from(self.dy) * other.dx).cmp(&(WideInt::from(other.dy) * self.dx))
    }
}

/// A model that still takes points.
#[derive(Debug)]
struct OpenModel {
    first: [u8; NUMBER],
    first_page: u64,
    last_page: u64,
    /// The points moved up, as far as a line below all of them can touch them; and the points moved
    /// down.
    upper: Vec<KeyPoint>,
    lower: Vec<KeyPoint>,
    /// Where the hulls begin.
    upper_start: usize,
    lower_start: usize,
    /// The flattest line, from a point moved up to one moved down.
    flat: [KeyPoint; 2],
    /// The steepest line, from a point moved down to one moved up.
    steep: [KeyPoint; 2],
}

impl OpenModel {
    fn new(first: [u8; NUMBER], page: u64, epsilon: u64) -> Self {
        let up = KeyPoint { x: WideInt::ZERO, y: 3 * epsilon };
        let down = KeyPoint { x: WideInt::ZERO, y: epsilon };
        Self {
            first,
            first_page: page,
            last_page: page,
            upper: vec![up],
            lower: vec![down],
            upper_start: 0,
            lower_start: 0,
            flat: [up; 2],
            steep: [down; 2],
        }
    }

    /// Adds a point. Returns `false` if then no line would be near enough to all points, or if the
    /// hulls are full.
    fn push(&mut self, key: &[u8; NUMBER], page: u64, epsilon: u64) -> bool {
        if self.upper.len().max(self.lower.len()) >= MAX_HULL {
            return false;
        }
        let x = wide(key) - wide(&self.first);
        let y = (page - self.first_page) * PARTS + 2 * epsilon;
        let (up, down) = (KeyPoint { x, y: y + epsilon }, KeyPoint { x, y: y - epsilon });
        if self.first_page == self.last_page {
            // The second point.
            self.flat[1] = down;
            self.steep[1] = up;
            self.upper.push(up);
            self.lower.push(down);
        } else {
            let flat = LineSlope::new(&self.flat[0], &self.flat[1]);
            let steep = LineSlope::new(&self.steep[0], &self.steep[1]);
            let too_low = LineSlope::new(&self.flat[0], &up).cmp(&flat).is_lt();
            let too_high = LineSlope::new(&self.steep[0], &down).cmp(&steep).is_gt();
            if too_low || too_high {
                return false;
            }
            let (turns_down, turns_up) = (
                LineSlope::new(&self.steep[0], &up).cmp(&steep).is_lt(),
                LineSlope::new(&self.flat[0], &down).cmp(&flat).is_gt(),
            );
            if turns_down {
                self.lower_start = extreme(&self.lower, self.lower_start, &up, Ordering::Less);
                self.steep = [self.lower[self.lower_start], up];
            }
            if turns_up {
                self.upper_start = extreme(&self.upper, self.upper_start, &down, Ordering::Greater);
                self.flat = [self.upper[self.upper_start], down];
                bend(&mut self.lower, self.lower_start, down, Ordering::Less);
            }
            if turns_down {
                bend(&mut self.upper, self.upper_start, up, Ordering::Greater);
            }
        }
        self.last_page = page;
        true
    }

    /// The mean of the flattest and the steepest line.
    ///
    /// Both lines are at most epsilon - [`MARGIN`] from every point, so their mean is, too. The
    /// slope is rounded to a multiple of 2^-shift, which is at most 2^-61 of the steeper slope;
    /// that slope rises by less than 2^55 parts over all points. So this rounding, with the
    /// halving, loses less than 1 part. Rounding the offset loses less than 1 part for both lines,
    /// and less than 1 more for the halving. Rounding a predicted position loses less than 1.
    fn model(&self) -> LearnedModel {
        let mut model = LearnedModel {
            first: self.first,
            offset: 0,
            slope: 0,
            shift: 0,
            first_page: self.first_page,
            last_page: self.last_page,
        };
        if self.first_page == self.last_page {
            return model;
        }
        let [flat, steep] =
            [&self.flat, &self.steep].map(|[from, to]| (from, LineSlope::new(from, to)));
        let at_first = |(from, slope): &(&KeyPoint, LineSlope)| {
            let fall = WideInt::from(slope.dy) * from.x / slope.dx;
            from.y as i64 - u64::try_from(fall).unwrap_or(u64::MAX) as i64
        };
        let lift = 2 * self.epsilon_of_first();
        let offset = (at_first(&flat) + at_first(&steep)).div_euclid(2) - lift as i64;
        // With this shift, the steeper slope has 62 or 63 bits.
        let LineSlope { dx, dy } = steep.1;
        let bits = |n: &WideInt| n.bit_len() as isize;
        let shift = (62 + bits(&dx) - bits(&WideInt::from(dy))).max(0) as usize;
        let scaled = |slope: &LineSlope| (WideInt::from(slope.dy) << shift) / slope.dx;
        let slope = (scaled(&flat.1) + scaled(&steep.1)) >> 1;
        model.slope = u64::try_from(slope).unwrap_or(u64::MAX);
        model.shift = shift as u16;
        model.offset = offset.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        model
    }

    /// Epsilon: the first point was moved by it.
    fn epsilon_of_first(&self) -> u64 {
        self.lower[0].y
    }
}

/// The point of a hull, from `start` on, whose slope to `to` is the least or the greatest.
fn extreme(hull: &[KeyPoint], start: usize, to: &KeyPoint, wanted: Ordering) -> usize {
    let mut best = start;
    let mut slope = LineSlope::new(&hull[start], to);
    for (at, point) in hull.iter().enumerate().skip(start + 1) {
        let other = LineSlope::new(point, to);
        // Along a hull, slopes improve up to the best one.
        if other.cmp(&slope) == wanted.reverse() {
            break;
        }
        (best, slope) = (at, other);
    }
    best
}

/// Adds a point to a hull whose slopes increase (`Greater`) or decrease.
fn bend(hull: &mut Vec<KeyPoint>, start: usize, point: KeyPoint, wanted: Ordering) {
    while hull.len() >= start + 2 {
        let (before, last) = (&hull[hull.len() - 2], &hull[hull.len() - 1]);
        if LineSlope::new(before, &point).cmp(&LineSlope::new(before, last)) == wanted {
            break;
        }
        hull.pop();
    }
    hull.push(point);
}

/// Learns models from a stream of keys and pages. Both must ascend strictly.
#[derive(Debug)]
pub(crate) struct ModelLearner {
    /// In parts of a page, minus the rounding margin.
    epsilon: u64,
    piece: Option<OpenModel>,
}

impl ModelLearner {
    /// Models may be off by `epsilon` 64ths of a page, 1 to 32.
    pub(crate) const fn new(epsilon: u8) -> Self {
        let epsilon = if epsilon > 32 { 32 } else { epsilon as u64 };
        Self { epsilon: epsilon * EPSILON_UNIT - MARGIN, piece: None }
    }

    /// Takes a point. If it does not fit the current model, returns that model and starts a new
    /// one.
    pub(crate) fn push(&mut self, key: &[u8; NUMBER], page: u64) -> Option<LearnedModel> {
        if let Some(piece) = &mut self.piece
            && piece.push(key, page, self.epsilon)
        {
            return None;
        }
        let done = self.piece.replace(OpenModel::new(*key, page, self.epsilon));
        done.map(|piece| piece.model())
    }

    /// Returns the last model.
    pub(crate) fn finish(&mut self) -> Option<LearnedModel> {
        self.piece.take().map(|piece| piece.model())
    }
}
