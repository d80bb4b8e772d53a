import { fetchJson } from '#services/console/api/client.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { useAction } from '#services/console/parts/action.ts'
import { CopyButton } from '#services/console/parts/copy-button.tsx'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import { BASE, navigate } from '#services/console/router.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'

interface ActionsProps {
  readonly job: AnyJob
  /** The job belongs to the key's project. Otherwise the admin API is used. */
  readonly isOwn: boolean
  readonly onDone: () => Promise<void>
}

export function Actions({ job, isOwn, onDone }: ActionsProps) {
  const { isBusy, problem, run } = useAction()
  const url = `${isOwn ? '/v1/jobs' : '/v1/admin/jobs'}/${job.id}`
  const cancel = () =>
    run(async () => {
      await fetchJson(`${url}/cancel`, { method: 'POST' })
      await onDone()
    })
  const redrive = () =>
    run(async () => {
      const { id } = await fetchJson<AnyJob>(`${url}/redrive`, { method: 'POST' })
      navigate(`${BASE}/jobs/${id}`)
    })
  const canRedrive = ['failed', 'cancelled', 'expired'].includes(job.status)
  return (
    <div class="actions">
      {!isEnded(job.status) && (
        <button type="button" onClick={() => void cancel()} disabled={isBusy.value || job.status === 'cancelling'}>
          <Icon name="stop" /> {job.status === 'cancelling' ? 'Cancelling…' : 'Cancel'}
        </button>
      )}
      {canRedrive && (
        <button type="button" class="primary" onClick={() => void redrive()} disabled={isBusy.value}>
          <Icon name="again" /> Run again
        </button>
      )}
      <CopyButton text={curlOf(url, job)} label="Copy as curl" />
      <CopyButton text={job.id} label="Copy ID" />
      <ErrorText text={problem.value} />
    </div>
  )
}

/** Streams the events of an unfinished job, or reads a finished one. */
function curlOf(url: string, { status }: AnyJob): string {
  const what = isEnded(status) || url.startsWith('/v1/admin') ? '' : '/events'
  return `curl -N '${location.origin}${url}${what}' -H "Authorization: Bearer $SLUICE_API_KEY"`
}
