//! The learned index of a run: a layer of models over the value pages, a layer of models over the
//! pages of the layer below, and so on up to a layer of one page (COLE, Algorithm 3).

use super::{
    file::{PAYLOAD, PageWriter, PagedFile},
    model::{LearnedModel, MODEL, ModelLearner, NUMBER},
};
use retrie_state::StateError;

/// Most models in a page, after their number (2 bytes).
const MODELS: usize = (PAYLOAD - 2) / MODEL;
/// Most layers: more than 2^40 pages can need.
pub(crate) const MAX_LAYERS: usize = 16;

/// Writes a layer of models.
#[derive(Debug)]
struct LayerWriter {
    learner: ModelLearner,
    page: Vec<u8>,
    models: u16,
}

impl LayerWriter {
    fn new(epsilon: u8) -> Self {
        Self { learner: ModelLearner::new(epsilon), page: vec![0; 2], models: 0 }
    }

    fn add(&mut self, model: Option<LearnedModel>, out: &mut PageWriter) -> Result<(), StateError> {
        let Some(model) = model else { return Ok(()) };
        if usize::from(self.models) == MODELS {
            self.write(out)?;
        }
        model.encode(&mut self.page);
        self.models += 1;
        Ok(())
    }

    fn write(&mut self, out: &mut PageWriter) -> Result<(), StateError> {
        self.page[..2].copy_from_slice(&self.models.to_be_bytes());
        out.append(&self.page)?;
        self.page.truncate(2);
        self.models = 0;
        Ok(())
    }

    fn finish(&mut self, out: &mut PageWriter) -> Result<(), StateError> {
        let last = self.learner.finish();
        self.add(last, out)?;
        self.write(out)
    }
}

/// Builds an index from the first keys of value pages.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    out: PageWriter,
    epsilon: u8,
    bottom: LayerWriter,
}

impl IndexBuilder {
    /// An index without keys. See [`ModelLearner::new`] for epsilon.
    pub(crate) fn new(out: PageWriter, epsilon: u8) -> Self {
        Self { out, epsilon, bottom: LayerWriter::new(epsilon) }
    }

    /// Adds the first pair of value page `page`, as a number.
    pub(crate) fn push(&mut self, key: &[u8; NUMBER], page: u64) -> Result<(), StateError> {
        let model = self.bottom.learner.push(key, page);
        self.bottom.add(model, &mut self.out)
    }

    /// Returns the file, and the number of pages of each layer from the bottom up. At least one key
    /// must have been added.
    pub(crate) fn finish(mut self) -> Result<(PageWriter, Vec<u64>), StateError> {
        self.bottom.finish(&mut self.out)?;
        let mut layer = 0..self.out.pages();
        let mut pages = vec![layer.end];
        while layer.end - layer.start > 1 {
            let mut above = LayerWriter::new(self.epsilon);
            for page in layer.clone() {
                let key = first_key(&self.out.read_back(page)?);
                let model = above.learner.push(&key, page);
                above.add(model, &mut self.out)?;
            }
            above.finish(&mut self.out)?;
            layer = layer.end..self.out.pages();
            pages.push(layer.end - layer.start);
        }
        Ok((self.out, pages))
    }
}

/// The first key of a page of models.
fn first_key(page: &[u8; PAYLOAD]) -> [u8; NUMBER] {
    std::array::from_fn(|at| page[2 + at])
}

/// The models of a page.
struct ModelPage<'a> {
    file: &'a PagedFile,
    page: u64,
    models: &'a [[u8; MODEL]],
}

impl<'a> ModelPage<'a> {
    fn read(file: &'a PagedFile, page: u64) -> Result<Self, StateError> {
        let payload = file.page(page)?;
        let count = usize::from(u16::from_be_bytes([payload[0], payload[1]]));
        let (models, _) = payload[2..].as_chunks();
        match models.get(..count) {
            Some(models) if count > 0 => Ok(Self { file, page, models }),
            _ => Err(file.corrupt(page, format!("a page cannot have {count} models"))),
        }
    }

    /// The number of models whose first key is not above `key`.
    fn up_to(&self, key: &[u8; NUMBER]) -> usize {
        self.models.partition_point(|model| model[..NUMBER] <= key[..])
    }

    /// The page that model `at`, or without it the first model, predicts for a key.
    fn follow(&self, at: Option<usize>, key: &[u8; NUMBER]) -> Result<u64, StateError> {
        let model = self.models.get(at.unwrap_or(0)).and_then(LearnedModel::decode);
        let model = model.ok_or_else(|| self.file.corrupt(self.page, "it has a bad model"))?;
        Ok(model.page(key))
    }
}

/// The predicted value page of a key: exact, one too low or one too high. `layers` are the numbers
/// of pages of the index's layers.
pub(crate) fn search(
    file: &PagedFile,
    layers: &[u64],
    key: &[u8; NUMBER],
) -> Result<u64, StateError> {
    let mut end = file.pages();
    // The top layer has one page.
    let mut guess = end.saturating_sub(1);
    for pages in layers.iter().rev() {
        let start = end.saturating_sub(*pages);
        let last = end.saturating_sub(1);
        end = start;
        let mut models = ModelPage::read(file, guess.clamp(start, last))?;
        let mut found = models.up_to(key);
        // If all models of the page start above the key, take the page before.
        while found == 0 && models.page > start {
            models = ModelPage::read(file, models.page - 1)?;
            found = models.up_to(key);
        }
        // If the first model of the next page does not start above the key, take the next page.
        while found == models.models.len() && models.page < last {
            let next = ModelPage::read(file, models.page + 1)?;
            match next.up_to(key) {
                0 => break,
                behind => (models, found) = (next, behind),
            }
        }
        guess = models.follow(found.checked_sub(1), key)?;
    }
    Ok(guess)
}
