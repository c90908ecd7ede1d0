//! Values stored under small numbers, so that the queue of events moves numbers and not messages.
//!
//! Freed places are reused, last freed first: in its steady state a simulation allocates nothing here.

/// Values by number.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    /// First of the list of free places.
    free: u32,
    len: usize,
}

#[derive(Clone, Debug)]
enum Place<T> {
    Taken(T),
    /// The next free place.
    Free(u32),
}

/// End of the list of free places.
const END: u32 = u32::MAX;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: END, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Stores a value; returns its number, valid until it is taken.
    ///
    /// # Panics
    /// With 2³² − 1 values in it.
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        let number = self.free;
        match self.places.get_mut(number as usize) {
            Some(place) => {
                let Place::Free(next) = *place else { unreachable!("only free places are on the list") };
                self.free = next;
                *place = Place::Taken(value);
                number
            }
            None => {
                let number = u32::try_from(self.places.len()).ok().filter(|number| *number != END);
                self.places.push(Place::Taken(value));
                number.expect("fewer than 2^32 values at a time")
            }
        }
    }

    /// The value of this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn get(&self, number: u32) -> &T {
        match &self.places[number as usize] {
            Place::Taken(value) => value,
            Place::Free(_) => panic!("nothing waits under {number}"),
        }
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// When there is none of this number.
    pub fn take(&mut self, number: u32) -> T {
        let place = std::mem::replace(&mut self.places[number as usize], Place::Free(self.free));
        let Place::Taken(value) = place else { panic!("nothing waits under {number}") };
        self.free = number;
        self.len -= 1;
        value
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::default();
        let numbers: Vec<u32> = (0..3).map(|value| slab.insert(value)).collect();
        assert_eq!((slab.take(numbers[1]), slab.take(numbers[0]), slab.len()), (1, 0, 1));
        assert_eq!((slab.insert(7), slab.insert(8)), (numbers[0], numbers[1]));
        assert_eq!((slab.take(numbers[2]), slab.take(numbers[0]), slab.take(numbers[1])), (2, 7, 8));
        assert!(slab.is_empty());
    }

    #[test]
    #[should_panic(expected = "nothing waits under 0")]
    fn nothing_is_taken_twice() {
        let mut slab = Slab::default();
        let number = slab.insert(());
        slab.take(number);
        slab.take(number);
    }
}
