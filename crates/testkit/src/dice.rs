//! A small generator with a fixed seed: a failure repeats.

#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        let mut dice = Self(seed);
        // Neighbouring seeds begin alike.
        dice.roll(2);
        dice.roll(2);
        dice
    }

    /// A number below `below`.
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.roll(from.len() as u64) as usize]
    }
}
