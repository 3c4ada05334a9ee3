//! Piecewise linear models that foretell where a key is (COLE, Definition 1, Algorithm 2).
//!
//! A point is a key, as a number, and a page. Lines within epsilon of all points so far are kept
//! as two hulls and the two steepest and flattest of these lines (O'Rourke 1981): a point costs
//! O(1) on average, and the arithmetic is exact. When no line is left, a model of the points before
//! is complete.

use alloy_primitives::Uint;
use std::cmp::Ordering;

/// Longest key, in bytes: that of a slot.
pub(crate) const MAX_KEY: usize = 53;
/// Bytes of a key and its block as a number.
pub(crate) const NUMBER: usize = MAX_KEY + 8;
/// Bytes of a stored model.
pub(crate) const MODEL: usize = NUMBER + 2 + 8 + 2 + 5 + 5;

/// Positions are counted in parts of a page, so many.
pub(super) const PARTS: u64 = 1 << 14;
/// Parts in a unit of epsilon.
const EPSILON_UNIT: u64 = PARTS / 64;
/// What rounding may add to a model's error, in parts: see [`Piece::model`].
const MARGIN: u64 = 4;

/// Room for differences of keys (488 bits) times those of positions (55 bits).
type Wide = Uint<576, 9>;

/// A key, padded with zeros, and a block, big-endian: as bytes and as a number in their order.
///
/// Keys none of which starts with another, as state keys are, keep their order.
pub(crate) fn number(key: &[u8], block: u64) -> [u8; NUMBER] {
    let mut number = [0; NUMBER];
    let len = key.len().min(MAX_KEY);
    number[..len].copy_from_slice(&key[..len]);
    number[MAX_KEY..].copy_from_slice(&block.to_be_bytes());
    number
}

fn wide(number: &[u8; NUMBER]) -> Wide {
    // 61 bytes fit into 72.
    Wide::try_from_be_slice(number).unwrap_or_default()
}

/// Foretells the pages of the keys from its first one to that of the next model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    /// Its first key.
    pub(crate) first: [u8; NUMBER],
    /// Where the line is at the first key, above the start of the first page, in parts of a page.
    offset: i16,
    /// The line rises by `slope / 2^shift` parts per key.
    slope: u64,
    shift: u16,
    first_page: u64,
    /// Page of the last key it was made from.
    last_page: u64,
}

impl Model {
    /// The page of a key, up to one too low or too high. Rises with the key.
    pub(crate) fn page(&self, key: &[u8; NUMBER]) -> u64 {
        if self.slope == 0 || *key <= self.first {
            return self.first_page;
        }
        let rise = wide(key) - wide(&self.first);
        // 488 and 64 bits: no overflow.
        let rise = (rise * Wide::from(self.slope)) >> usize::from(self.shift);
        let limit = (self.last_page - self.first_page + 1).saturating_mul(PARTS);
        let rise = u64::try_from(rise).unwrap_or(u64::MAX).min(2 * limit);
        let parts = rise.saturating_add_signed(self.offset.into());
        (self.first_page + parts / PARTS).min(self.last_page)
    }

    /// Where the line is, in parts of a page. For tests.
    #[cfg(test)]
    pub(super) fn exact(&self, key: &[u8; NUMBER]) -> i128 {
        let rise = (wide(key) - wide(&self.first)) * Wide::from(self.slope);
        let rise = u64::try_from(rise >> usize::from(self.shift)).unwrap();
        i128::from(self.first_page * PARTS) + i128::from(self.offset) + i128::from(rise)
    }

    /// Appends its [`MODEL`] bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first);
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.slope.to_be_bytes());
        out.extend_from_slice(&self.shift.to_be_bytes());
        out.extend_from_slice(&self.first_page.to_be_bytes()[3..]);
        out.extend_from_slice(&self.last_page.to_be_bytes()[3..]);
    }

    /// Reads [`encode`](Self::encode)'s bytes.
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
struct Point {
    /// Above the first key of the piece.
    x: Wide,
    /// Above the first page of the piece, lifted by twice epsilon, so that it is positive.
    y: u64,
}

/// The slope from one point to a later one. It is positive: pages are one apart at least, points
/// are moved by less than half a page.
#[derive(Clone, Copy)]
struct Slope {
    dx: Wide,
    dy: u64,
}

impl Slope {
    fn new(from: &Point, to: &Point) -> Self {
        debug_assert!(to.x > from.x && to.y > from.y);
        Self { dx: to.x - from.x, dy: to.y - from.y }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        (Wide::from(self.dy) * other.dx).cmp(&(Wide::from(other.dy) * self.dx))
    }
}

/// The points of the model in the making.
#[derive(Debug)]
struct Piece {
    first: [u8; NUMBER],
    first_page: u64,
    last_page: u64,
    /// The points moved up, as far as a line below them all can touch them, and moved down.
    upper: Vec<Point>,
    lower: Vec<Point>,
    /// The hulls begin here.
    upper_start: usize,
    lower_start: usize,
    /// The flattest line, from a point moved up to one moved down.
    flat: [Point; 2],
    /// The steepest line, from a point moved down to one moved up.
    steep: [Point; 2],
}

impl Piece {
    fn new(first: [u8; NUMBER], page: u64, epsilon: u64) -> Self {
        let up = Point { x: Wide::ZERO, y: 3 * epsilon };
        let down = Point { x: Wide::ZERO, y: epsilon };
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

    /// Takes a point in, unless no line is near enough to all of them then.
    fn push(&mut self, key: &[u8; NUMBER], page: u64, epsilon: u64) -> bool {
        let x = wide(key) - wide(&self.first);
        let y = (page - self.first_page) * PARTS + 2 * epsilon;
        let (up, down) = (Point { x, y: y + epsilon }, Point { x, y: y - epsilon });
        if self.first_page == self.last_page {
            // The second point.
            self.flat[1] = down;
            self.steep[1] = up;
            self.upper.push(up);
            self.lower.push(down);
        } else {
            let flat = Slope::new(&self.flat[0], &self.flat[1]);
            let steep = Slope::new(&self.steep[0], &self.steep[1]);
            let too_low = Slope::new(&self.flat[0], &up).cmp(&flat).is_lt();
            let too_high = Slope::new(&self.steep[0], &down).cmp(&steep).is_gt();
            if too_low || too_high {
                return false;
            }
            let (turns_down, turns_up) = (
                Slope::new(&self.steep[0], &up).cmp(&steep).is_lt(),
                Slope::new(&self.flat[0], &down).cmp(&flat).is_gt(),
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

    /// The line between the flattest and the steepest one.
    ///
    /// Both are at most epsilon - [`MARGIN`] from every point, so is the mean of both. The slope is
    /// rounded to a multiple of 2^-shift, which is at most 2^-61 of the steeper one, and that rises
    /// by less than 2^55 parts over all points: less than 1 part is lost there, all roundings down
    /// and the halving counted. Rounding the offset loses less than 1 for both lines and less than
    /// 1 more for halving, rounding a foretold position less than 1.
    fn model(&self) -> Model {
        let mut model = Model {
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
            [&self.flat, &self.steep].map(|[from, to]| (from, Slope::new(from, to)));
        let at_first = |(from, slope): &(&Point, Slope)| {
            let fall = Wide::from(slope.dy) * from.x / slope.dx;
            from.y as i64 - u64::try_from(fall).unwrap_or(u64::MAX) as i64
        };
        let lift = 2 * self.epsilon_of_first();
        let offset = (at_first(&flat) + at_first(&steep)).div_euclid(2) - lift as i64;
        // With the shift, the steeper slope has 62 bits, or 63.
        let Slope { dx, dy } = steep.1;
        let bits = |n: &Wide| n.bit_len() as isize;
        let shift = (62 + bits(&dx) - bits(&Wide::from(dy))).max(0) as usize;
        let scaled = |slope: &Slope| (Wide::from(slope.dy) << shift) / slope.dx;
        let slope = (scaled(&flat.1) + scaled(&steep.1)) >> 1;
        model.slope = u64::try_from(slope).unwrap_or(u64::MAX);
        model.shift = shift as u16;
        model.offset = offset.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        model
    }

    /// Epsilon, which the first point was moved by.
    fn epsilon_of_first(&self) -> u64 {
        self.lower[0].y
    }
}

/// The point of a hull from `start` on whose slope to `to` is the least, or the greatest.
fn extreme(hull: &[Point], start: usize, to: &Point, wanted: Ordering) -> usize {
    let mut best = start;
    let mut slope = Slope::new(&hull[start], to);
    for (at, point) in hull.iter().enumerate().skip(start + 1) {
        let other = Slope::new(point, to);
        // Slopes along a hull get better, then worse.
        if other.cmp(&slope) == wanted.reverse() {
            break;
        }
        (best, slope) = (at, other);
    }
    best
}

/// Adds a point to a hull whose slopes rise (`Greater`) or fall.
fn bend(hull: &mut Vec<Point>, start: usize, point: Point, wanted: Ordering) {
    while hull.len() >= start + 2 {
        let (before, last) = (&hull[hull.len() - 2], &hull[hull.len() - 1]);
        if Slope::new(before, &point).cmp(&Slope::new(before, last)) == wanted {
            break;
        }
        hull.pop();
    }
    hull.push(point);
}

/// Makes models of a stream of keys and pages, both strictly ascending.
#[derive(Debug)]
pub(crate) struct Learner {
    /// In parts of a page, rounding taken off.
    epsilon: u64,
    piece: Option<Piece>,
}

impl Learner {
    /// Models may be off by `epsilon` 64ths of a page, 1 to 32.
    pub(crate) const fn new(epsilon: u8) -> Self {
        let epsilon = if epsilon > 32 { 32 } else { epsilon as u64 };
        Self { epsilon: epsilon * EPSILON_UNIT - MARGIN, piece: None }
    }

    /// Takes a point; the model of those before it, if it does not fit to them.
    pub(crate) fn push(&mut self, key: &[u8; NUMBER], page: u64) -> Option<Model> {
        if let Some(piece) = &mut self.piece
            && piece.push(key, page, self.epsilon)
        {
            return None;
        }
        let done = self.piece.replace(Piece::new(*key, page, self.epsilon));
        done.map(|piece| piece.model())
    }

    /// The last model.
    pub(crate) fn finish(&mut self) -> Option<Model> {
        self.piece.take().map(|piece| piece.model())
    }
}
