//! The figures of views.

use quire_expression::filter::AggregateKind;

use super::Current;
use super::View;
use super::joined::Records;
use crate::config::views::ViewDefinition;
use crate::context::Context;
use crate::stats::{TableFigures, ViewFigures, ViewJoinFigures, ViewSourceFigures};
use crate::tables::Tables;
use crate::topic::TableId;

impl Tables {
    /// For a view: adds its state, and the changes that it does not have yet, to its figures.
    pub(in crate::tables) fn describe_view(&self, cx: &Context, id: TableId, figures: &mut TableFigures) {
        let Some(view) = self.derived.views.iter().find(|view| view.table == id) else { return };
        let Some(definition) = self.all[id.0 as usize].definition.view.as_deref() else { return };
        let now = cx.clock.now.wall;
        let mut lag = self.derived.waiting.lag(&view.sources, now);
        if let Some(Current { source, change, .. }) = &self.derived.current
            && view.sources.contains(source)
        {
            lag.add(change.at, 1, now);
        }
        figures.waiting_count = Some(lag.count);
        figures.behind_ns = Some(lag.behind_ns);
        let replaced_ns = self.redefining.replaced_ns(&definition.settings.name);
        let known = ViewFigures { replaced_ns, ..self.kept_by(view, definition) };
        let kept: u64 = known.sources.iter().map(|source| source.memory_size).sum();
        let indexes: u64 = known.joins.iter().map(|join| join.memory_size).sum();
        figures.memory_size += kept + indexes + known.groups_memory_size;
        figures.view = Some(known);
    }

    fn kept_by(&self, view: &View, definition: &ViewDefinition) -> ViewFigures {
        let ViewDefinition { sources, records, settings, .. } = definition;
        let mut figures = ViewFigures {
            projection: settings.projection.clone(),
            filter: settings.filter.clone(),
            inline_conflation: settings.inline_conflation,
            sources: Vec::new(),
            joins: Vec::new(),
            aggregates: records.projection().kinds().map(AggregateKind::name).collect(),
            group_count: view.records.group_count() as u64,
            groups_memory_size: view.records.groups_size() as u64,
            combination_count: view.records.combination_count(),
            replaced_ns: None,
        };
        match &view.records {
            Records::Groups(_) => {
                let record_count = self.all[view.sources[0].0 as usize].table.stats().rows as u64;
                let topic = sources[0].to_string();
                figures.sources.push(ViewSourceFigures { topic, record_count, memory_size: 0 });
            }
            Records::Joins(joined) => {
                let kept = sources.iter().zip(joined.source_figures());
                figures.sources = kept
                    .map(|(topic, kept)| ViewSourceFigures {
                        topic: topic.to_string(),
                        record_count: kept.record_count as u64,
                        memory_size: kept.memory_size as u64,
                    })
                    .collect();
                figures.joins = joined
                    .index_figures()
                    .map(|(parent, child, kept)| ViewJoinFigures {
                        parent: sources[parent].to_string(),
                        child: sources[child].to_string(),
                        key_count: kept.key_count as u64,
                        memory_size: kept.memory_size as u64,
                    })
                    .collect();
            }
        }
        figures
    }
}
