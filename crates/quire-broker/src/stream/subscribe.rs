//! The begin, the replacement and the end of subscriptions of the publish stream.

use super::PublishStream;
use crate::context::Context;
use crate::subscription::SubscriptionId;
use crate::topic::Stage;

impl PublishStream {
    /// A subscription receives its messages from the publish stream from now on, unless it has no
    /// messages there.
    pub(crate) fn begin(&mut self, cx: &mut Context, id: SubscriptionId) {
        if cx.is_in_audience(id) {
            cx.join(id, Stage::Published);
        }
    }

    /// A subscription is about to be replaced. The messages whose filters are being evaluated
    /// remain.
    pub(crate) fn part(&mut self, cx: &mut Context, id: SubscriptionId) {
        if cx.is_in_audience(id) {
            cx.leave(id, Stage::Published);
        }
    }

    /// A subscription is about to be removed.
    pub(crate) fn end(&mut self, cx: &mut Context, id: SubscriptionId) {
        self.part(cx, id);
        self.forget_deferred(cx, id);
    }
}
