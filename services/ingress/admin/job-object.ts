import type { DurableJob } from '#schemas/durable-job.ts'
import type { ChildCounts } from '#services/ingress/jobs/child-counts.ts'
import { jobObject } from '#services/ingress/jobs/object.ts'
import type { Wait } from './pending-reason.ts'

/**
 * A job as operators see it: its project, its state and the reason of a wait. Content of callers is left out: the
 * result, messages of the progress, and the URL of the webhook, which may contain a secret.
 *
 * @param waits Reason of its wait; null: it does not wait; undefined: not determined.
 * @param counts Progress of its child jobs; undefined: none, or not determined.
 */
export function operatorJob(job: DurableJob, waits?: Wait | null, counts?: ChildCounts): Record<string, unknown> {
  const { result: _, progress, webhook, urls: __, ...shown } = jobObject(job, { counts })
  const url = `/v1/admin/jobs/${job.id}`
  return {
    ...shown,
    project: job.tenant,
    kind: job.kind,
    worker: job.owner,
    tries: job.tries,
    crashes: job.crashes,
    progress: numbersOf(progress),
    webhook:
      webhook === null ? null : { host: URL.parse(job.webhook_url ?? '')?.host ?? null, events: job.webhook_events },
    ...(waits !== undefined && { waits }),
    urls: { get: url, cancel: `${url}/cancel`, redrive: `${url}/redrive` },
  }
}

function numbersOf(progress: unknown): object | null {
  const { phase = null, percent = null } = (progress ?? {}) as { phase?: unknown; percent?: unknown }
  return progress ? { phase, percent } : null
}
