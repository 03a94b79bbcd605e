//! The icon of the project, drawn in the sizes of panels.
//!
//! The shapes are those of `page/icon.svg` of the server: bars on a square with round corners. It has its own ground, so it is
//! seen on light and dark panels, and each state has a shape of its own beside its colour.

/// What the icon tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The server runs.
    Idle,
    /// The microphone is open: a disc, as recorders have.
    Listening,
    /// A text is read aloud: a triangle, as players have.
    Speaking,
    /// The server does not run: the bars are dots.
    Off,
}

/// Lengths are in units of the drawing, which is 32 wide.
const UNITS: f32 = 32.0;
const CORNER: f32 = 7.0;
const HALF_STROKE: f32 = 1.3;
/// The middle of each bar, and its half length.
const BARS: [(f32, f32); 5] = [(6.0, 3.0), (11.0, 8.0), (16.0, 12.0), (21.0, 6.0), (26.0, 3.0)];
const DISC: f32 = 8.0;
/// Where the triangle ends; it is 14 wide and 18 high.
const TIP: f32 = 25.0;
const WHITE: [u8; 3] = [255, 255, 255];

impl Sign {
    fn ground(self) -> [u8; 3] {
        match self {
            Self::Idle => [0x0b, 0x5f, 0x58],
            Self::Listening => [0xc6, 0x28, 0x28],
            Self::Speaking => [0x1d, 0x5f, 0xc4],
            Self::Off => [0x6b, 0x72, 0x80],
        }
    }

    /// The distance of a point to the figure on the ground, negative within it.
    fn figure(self, x: f32, y: f32) -> f32 {
        let bars = |height: f32| {
            let bar = |&(middle, half): &(f32, f32)| {
                let beyond = ((y - 16.0).abs() - height * half).max(0.0);
                (x - middle).hypot(beyond) - HALF_STROKE
            };
            BARS.iter().map(bar).fold(f32::INFINITY, f32::min)
        };
        match self {
            Self::Idle => bars(1.0),
            Self::Off => bars(0.0),
            Self::Listening => (x - 16.0).hypot(y - 16.0) - DISC,
            Self::Speaking => {
                let slope = (9.0 * (x - TIP) + 14.0 * (y - 16.0).abs()) / 9.0_f32.hypot(14.0);
                slope.max(TIP - 14.0 - x)
            }
        }
    }

    /// The picture: `size * size` pixels of red, green, blue and opacity, row by row.
    pub(super) fn rgba(self, size: u16) -> Vec<u8> {
        let scale = UNITS / f32::from(size);
        // The share of a pixel that is within a distance.
        let share = |distance: f32| (0.5 - distance / scale).clamp(0.0, 1.0);
        let pixel = |row: u16, column: u16| {
            let (x, y) = ((f32::from(column) + 0.5) * scale, (f32::from(row) + 0.5) * scale);
            let beyond = |at: f32| (at - 16.0).abs() - (16.0 - CORNER);
            let ground = beyond(x).max(0.0).hypot(beyond(y).max(0.0)) - CORNER;
            let figure = share(self.figure(x, y));
            let mixed = |(back, front): (u8, u8)| {
                (f32::from(back) * (1.0 - figure) + f32::from(front) * figure).round() as u8
            };
            let [red, green, blue] = self.ground();
            let colours = [(red, WHITE[0]), (green, WHITE[1]), (blue, WHITE[2])].map(mixed);
            [colours[0], colours[1], colours[2], (255.0 * share(ground)).round() as u8]
        };
        (0..size).flat_map(|row| (0..size).flat_map(move |column| pixel(row, column))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNS: [Sign; 4] = [Sign::Idle, Sign::Listening, Sign::Speaking, Sign::Off];

    /// The colour of a pixel.
    fn at(picture: &[u8], size: usize, x: usize, y: usize) -> [u8; 4] {
        picture[4 * (y * size + x)..][..4].try_into().unwrap()
    }

    #[test]
    fn the_drawing_is_that_of_the_page() {
        let picture = Sign::Idle.rgba(64);
        assert_eq!(at(&picture, 64, 0, 0)[3], 0, "the corner is clear");
        assert_eq!(at(&picture, 64, 4, 32), [0x0b, 0x5f, 0x58, 255]);
        assert_eq!(at(&picture, 64, 32, 10), [255, 255, 255, 255], "the tallest bar");
        assert_eq!(at(&picture, 64, 22, 10), [0x0b, 0x5f, 0x58, 255], "above the second bar");
    }

    #[test]
    fn each_state_has_a_shape_of_its_own() {
        // Shapes without their colours, in the size of a small panel.
        let shapes = SIGNS.map(|sign| {
            let picture = sign.rgba(22);
            assert_eq!(picture.len(), 22 * 22 * 4);
            picture.chunks(4).map(|pixel| pixel[0] > 200 && pixel[1] > 150).collect::<Vec<bool>>()
        });
        for (index, shape) in shapes.iter().enumerate() {
            assert!(shape.iter().any(|pixel| *pixel));
            for other in &shapes[..index] {
                let differing = shape.iter().zip(other).filter(|(one, two)| one != two).count();
                assert!(differing >= 12, "{index}: {differing} pixels");
            }
        }
    }

    #[test]
    fn it_is_seen_on_light_and_dark_panels() {
        let light = |[red, green, blue]: [u8; 3]| {
            0.3 * f32::from(red) + 0.6 * f32::from(green) + 0.1 * f32::from(blue)
        };
        for sign in SIGNS {
            let (ground, figure) = (light(sign.ground()), light(WHITE));
            assert!(light([240; 3]) - ground > 80.0, "{sign:?}");
            assert!(figure - light([40; 3]) > 80.0 && figure - ground > 80.0, "{sign:?}");
        }
    }
}
