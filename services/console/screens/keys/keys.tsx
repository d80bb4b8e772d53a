import { serviceNow } from '#services/console/api/clock.ts'
import { usePoll } from '#services/console/api/poll.ts'
import { ownKey } from '#services/console/api/session.ts'
import type { ApiKey } from '#services/console/api/types.ts'
import { Confirm } from '#services/console/parts/confirm.tsx'
import { ForOperators } from '#services/console/parts/operators.tsx'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { clock, clockToMinute } from '#services/console/parts/time.ts'
import { asked, askFor } from '#services/console/place.ts'
import { KeyForm } from './form.tsx'
import { limitTexts } from './limits.tsx'
import { Opens } from './opens.tsx'
import { Projects } from './projects.tsx'
import { Rotate } from './rotate.tsx'
import { hasMore, isLoaded, keys, look, nameOf, problem, projects, revokeKey } from './state.ts'
import { Usage, usd } from './usage.tsx'

const REFRESH_MS = 10_000
/** An expiry within this time is shown to the minute. */
const SOON_SECONDS = 172_800
/** Retention of the last-used date. */
const USES_SECONDS = 90 * 86_400
const COLUMNS = ['Key', 'Project', 'Permissions', 'Limits', 'This month', 'State', '']
const STATES = { valid: 'Valid', revoked: 'Revoked', expired: 'Expired', all: 'All' } as const

/** Keys and projects with their permissions, limits and usage. */
export function Keys() {
  return (
    <section>
      <ForOperators>
        <Shown />
      </ForOperators>
    </section>
  )
}

function Shown() {
  const state = asked('state') || 'valid'
  const wanted = { project: asked('project'), state: state === 'all' ? '' : state }
  const again = () => void look(wanted)
  // Opening the usage of a key also refreshes its row, so both show the same values.
  usePoll(REFRESH_MS, (signal) => look(wanted, signal), [wanted.project, wanted.state, asked('usage')])
  const [, owner, id] = /^(key|project):(.+)$/.exec(asked('usage')) ?? []
  return (
    <>
      <div class="title">
        <h1>Keys and projects</h1>
        <Opens verb="Create key" isPrimary title="Create key" onClose={again}>
          {(close) => <KeyForm close={close} />}
        </Opens>
      </div>
      <Refusal of={problem.value} />
      {id && <Usage owner={owner as 'key' | 'project'} id={id} name={owner === 'key' ? keyName(id) : nameOf(id)} />}
      {isLoaded.value ? (
        <>
          <Projects look={again} />
          <h2>Keys</h2>
          <Filters state={state} project={wanted.project} />
          <List look={again} />
        </>
      ) : (
        !problem.value && <p class="dim">Loading…</p>
      )}
    </>
  )
}

function Filters({ state, project }: { readonly state: string; readonly project: string }) {
  return (
    <div class="filters">
      <fieldset class="chips">
        <legend class="unseen">State</legend>
        {Object.entries(STATES).map(([id, name]) => (
          <button key={id} type="button" class="chip" aria-pressed={id === state} onClick={() => askFor({ state: id })}>
            {name}
          </button>
        ))}
      </fieldset>
      <select
        aria-label="Project"
        value={project}
        onChange={({ currentTarget }) => askFor({ project: currentTarget.value })}
      >
        <option value="">All projects</option>
        {[...new Set([...projects.value.map(({ id }) => id), ...(project ? [project] : [])])].map((id) => (
          <option key={id} value={id}>
            {nameOf(id)}
          </option>
        ))}
      </select>
    </div>
  )
}

function List({ look: again }: { readonly look: () => void }) {
  if (keys.value.length === 0) return <p class="card dim">No keys match these filters.</p>
  return (
    <>
      <Table label="Keys" columns={COLUMNS}>
        {keys.value.map((key) => (
          <Row key={key.id} of={key} look={again} />
        ))}
      </Table>
      {hasMore.value && (
        <p class="dim">
          Only the first {keys.value.length.toLocaleString()} keys are shown. Select a project to see fewer.
        </p>
      )}
    </>
  )
}

function Row({ of, look: again }: { readonly of: ApiKey; readonly look: () => void }) {
  const { id, name, hint, project, scopes, endpoints, models, limits, month, state, expires_at } = of
  const isOwn = id === ownKey.value?.id
  return (
    <tr>
      <Cell of="Key">
        <strong>{name ?? id}</strong>
        {isOwn && <span class="dim"> (signed in)</span>}
        {name && name !== id && <code class="dim below">{id}</code>}
        <code class="dim below">{hint}</code>
        {of.is_setting && <span class="dim below">SLUICE_API_KEY</span>}
      </Cell>
      <Cell of="Project">{nameOf(project)}</Cell>
      <Cell of="Permissions">
        {scopes.join(', ')}
        {models && <span class="dim below">{models.join(', ')}</span>}
        {endpoints && <span class="dim below">{endpoints.join(', ')}</span>}
      </Cell>
      <Cell of="Limits">
        {limitTexts(limits).map((text) => (
          <span key={text} class="limit">
            {text}
          </span>
        ))}
        {limitTexts(limits).length === 0 && <span class="dim">–</span>}
      </Cell>
      <Cell of="This month">
        {month ? usd(month.cost_usd) : '–'}
        {month && (
          <span class="dim below">{month.calls === 1 ? '1 request' : `${month.calls.toLocaleString()} requests`}</span>
        )}
        <span class="dim below">{lastUse(of)}</span>
      </Cell>
      <Cell of="State">
        <Status of={state} />
        {expires_at !== null && state === 'valid' && (
          <span class="dim below" title={clock(expires_at)}>
            expires {endText(expires_at)}
          </span>
        )}
      </Cell>
      <Cell>
        <div class="deeds">
          <button
            type="button"
            class="small"
            aria-label={`Usage of ${name ?? id}`}
            onClick={() => askFor({ usage: `key:${id}` })}
          >
            Usage
          </button>
          {state === 'valid' && !of.is_setting && <Deeds of={of} look={again} />}
        </div>
      </Cell>
    </tr>
  )
}

function Deeds({ of, look: again }: { readonly of: ApiKey; readonly look: () => void }) {
  const what = of.name ?? of.id
  return (
    <>
      <Opens verb="Edit" isSmall title={`Edit ${what}`} onClose={again}>
        {(close) => <KeyForm before={of} close={close} />}
      </Opens>
      <Opens verb="Rotate" isSmall title={`Rotate ${what}`} onClose={again}>
        {(close) => <Rotate of={of} close={close} />}
      </Opens>
      <Confirm verb="Revoke" what={what} deed={() => revokeKey(of.id).then(again)}>
        <p>
          Requests with this key are rejected from now on, and open streams are closed. Submitted jobs keep running.
          This can’t be undone.
        </p>
        {of.id === ownKey.value?.id && (
          <p class="note warn">You are signed in with this key. Revoking it signs you out.</p>
        )}
      </Confirm>
    </>
  )
}

/** The last use of a key. A key older than the retention may have been used before it. */
function lastUse({ last_used_on, created_at }: ApiKey): string {
  if (last_used_on) return `last used ${last_used_on}`
  const isNew = created_at !== null && created_at > serviceNow() - USES_SECONDS
  return isNew ? 'never used' : 'not used in 90 days'
}

function keyName(id: string): string {
  return keys.value.find((key) => key.id === id)?.name ?? id
}

/** A date, with the time if the expiry is near. */
function endText(expiresAt: number): string {
  const end = new Date(expiresAt * 1_000)
  return expiresAt - serviceNow() < SOON_SECONDS ? clockToMinute(expiresAt) : end.toLocaleDateString()
}
