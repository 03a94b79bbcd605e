//! The parameters of a beam search for the likeliest text of a recording.

use crate::InputError;

/// A beam search at temperature 0; above it, tokens are drawn instead. Absent values are the model's own.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BeamSearch {
    /// Texts that are continued side by side, 1 to [`MAX_BEAM_SIZE`](Self::MAX_BEAM_SIZE); 1 takes the likeliest token each
    /// time.
    pub beam_size: Option<usize>,
    /// Texts that are finished before the search ends, as a multiple of `beam_size`, up to
    /// [`MAX_PATIENCE`](Self::MAX_PATIENCE); 1.0 where absent.
    pub patience: Option<f32>,
    /// Exponent α, 0.0 to 1.0, of the length by which the log-probability of a text is divided, ((5 + tokens) / 6)^α: 0.0
    /// prefers short texts. Absent, it is divided by the number of tokens.
    pub length_penalty: Option<f32>,
}

impl BeamSearch {
    /// Upper limit of `beam_size`.
    pub const MAX_BEAM_SIZE: usize = 10;
    /// Upper limit of `patience`.
    pub const MAX_PATIENCE: f32 = 8.0;

    /// Checks the ranges of the values.
    ///
    /// # Errors
    /// A value is out of its range, or `patience` is set without a search; the error names it.
    pub fn check(&self) -> Result<(), InputError> {
        let Self { beam_size, patience, length_penalty } = *self;
        let fault = |param, message| Err(InputError { param, message });
        if let Some(size) = beam_size.filter(|size| !(1..=Self::MAX_BEAM_SIZE).contains(size)) {
            let message = format!("beam_size {size} is out of range; use 1 to {}", Self::MAX_BEAM_SIZE);
            return fault("beam_size", message);
        }
        if let Some(patience) =
            patience.filter(|patience| !(*patience > 0.0 && *patience <= Self::MAX_PATIENCE))
        {
            let most = Self::MAX_PATIENCE;
            let message = format!("patience {patience} is out of range; use a number above 0, up to {most}");
            return fault("patience", message);
        }
        if patience.is_some() && beam_size == Some(1) {
            let message = "patience needs a beam_size above 1; raise that or leave patience out";
            return fault("patience", message.to_owned());
        }
        if let Some(penalty) = length_penalty.filter(|penalty| !(0.0..=1.0).contains(penalty)) {
            let message = format!("length_penalty {penalty} is out of range; use 0 to 1");
            return fault("length_penalty", message);
        }
        Ok(())
    }

    /// The first field that asks for a search, for models that have none.
    pub fn asked(&self) -> Option<&'static str> {
        let asked = [
            (self.beam_size.is_some_and(|size| size > 1), "beam_size"),
            (self.patience.is_some(), "patience"),
            (self.length_penalty.is_some(), "length_penalty"),
        ];
        asked.into_iter().find(|(asked, _)| *asked).map(|(_, param)| param)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let with = |beam_size, patience, length_penalty| {
            BeamSearch { beam_size, patience, length_penalty }.check().map_err(|error| error.param)
        };
        for (checked, param) in [
            (with(Some(0), None, None), "beam_size"),
            (with(Some(11), None, None), "beam_size"),
            (with(Some(1), Some(1.0), None), "patience"),
            (with(None, Some(0.0), None), "patience"),
            (with(None, Some(8.5), None), "patience"),
            (with(None, Some(f32::NAN), None), "patience"),
            (with(None, None, Some(1.5)), "length_penalty"),
            (with(None, None, Some(f32::NAN)), "length_penalty"),
        ] {
            assert_eq!(checked, Err(param));
        }
        assert_eq!(with(None, None, None), Ok(()));
        assert_eq!(with(Some(10), Some(8.0), Some(0.0)), Ok(()));
    }

    #[test]
    fn a_beam_of_one_is_no_search() {
        let asked = |beam_size, length_penalty| {
            BeamSearch { beam_size, length_penalty, ..BeamSearch::default() }.asked()
        };
        assert_eq!((asked(Some(1), None), asked(Some(2), None)), (None, Some("beam_size")));
        assert_eq!(asked(None, Some(0.5)), Some("length_penalty"));
    }
}
