import type { ComponentChildren } from 'preact'
import { isOperator } from '#services/console/api/client.ts'
import { projectName } from '#services/console/api/names.ts'
import { BASE } from './router.ts'

export type Field = readonly [name: string, value: ComponentChildren]

/** Card with the fields of an object. Fields without a value are left out. */
export function Details({ fields }: { readonly fields: readonly Field[] }) {
  return (
    <aside class="card details" aria-label="Details">
      <h2>Details</h2>
      <dl>
        {fields.map(
          ([name, value]) =>
            Boolean(value) && (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ),
        )}
      </dl>
    </aside>
  )
}

/** @param path Path below {@link BASE}. Undefined if the key of this tab may not open the page */
export function linked(text: string, path: string | undefined): ComponentChildren {
  return path === undefined ? text : <a href={`${BASE}/${path}`}>{text}</a>
}

export function projectLink(id: string, name = projectName(id)): ComponentChildren {
  return linked(name, isOperator.value ? `keys?project=${encodeURIComponent(id)}` : undefined)
}

export function workerLink(id: string): ComponentChildren {
  return linked(id, isOperator.value ? 'workers' : undefined)
}

/** Path of the page of a batch below {@link BASE}. A batch of the Messages API (`msgbatch_…`) has no page of its own, so the page of its job is used. */
export function batchPath(id: string): string {
  return id.startsWith('batch_') ? `batches/${id}` : `jobs/${id.replace('msgbatch_', 'job_')}`
}

export function modelLink(id: string): ComponentChildren {
  return linked(id, `requests?model=${encodeURIComponent(id)}`)
}
