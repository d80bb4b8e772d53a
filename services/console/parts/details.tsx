import type { ComponentChildren } from 'preact'
import { ApiFailure, isOperator, messageOf } from '#services/console/api/client.ts'
import { projectName } from '#services/console/api/names.ts'
import { CopyButton, Icon } from './parts.tsx'
import { BASE } from './router.ts'
import { Empty, LoadState } from './states.tsx'

interface DetailHeadProps {
  /** Path below {@link BASE} of the list of these objects. */
  readonly list: 'batches' | 'jobs' | 'requests'
  /** Kind of the object: the heading until the object is loaded, or if it has no title. */
  readonly what: string
  readonly id: string
  readonly title?: string | undefined
  /** Missing until the object is loaded. */
  readonly state?: ComponentChildren
  /** Actions. */
  readonly children?: ComponentChildren
}

/** Head of the page of one object: a link to the list, the title with the state, the id, and the actions. */
export function DetailHead({ list, what, id, title = what, state, children }: DetailHeadProps) {
  return (
    <header>
      <a class="up" href={`${BASE}/${list}`}>
        <Icon name="back" /> {nameOf(list)}
      </a>
      <div class="title">
        <div>
          <div class="title-line">
            <h1>{title}</h1>
            {state}
          </div>
          <p class="object-id">
            <code class="dim">{id}</code>
            {state && <CopyButton text={id} label="Copy ID" isIcon />}
          </p>
        </div>
        {children}
      </div>
    </header>
  )
}

interface DetailStateProps {
  readonly list: DetailHeadProps['list']
  readonly what: string
  /** Possible reasons why no object with the id can be read. Default: the message of the API without its first sentence, which repeats the id. */
  readonly why?: string
  /** Error of the last load. A 404 is shown as an object that does not exist. */
  readonly error: unknown
  readonly isLoaded: boolean
  readonly retry?: () => void
}

/** The state of the page of one object, like {@link LoadState}. If the object does not exist, then a text is shown instead of an error. */
export function DetailState({ list, what, why, error, ...state }: DetailStateProps) {
  const isMissing = error instanceof ApiFailure && error.status === 404
  if (!isMissing) return <LoadState {...state} problem={error === undefined ? '' : messageOf(error)} layout="detail" />
  return (
    <Empty
      title={`No ${what} with this ID`}
      action={
        <a class="button" href={`${BASE}/${list}`}>
          Show all {nameOf(list).toLowerCase()}
        </a>
      }
    >
      {why ?? messageOf(error).replace(/^No .+? with the id '.*?'.*?\. /, '')}
    </Empty>
  )
}

function nameOf(list: string): string {
  return `${list[0]?.toUpperCase()}${list.slice(1)}`
}

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
