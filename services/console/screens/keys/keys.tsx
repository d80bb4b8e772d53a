import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { type ApiKey, ownKey, type Project } from '#services/console/api/client.ts'
import { dateText, dateTimeText, dayText, minuteText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { keyName } from '#services/console/api/names.ts'
import { ActionMenu } from '#services/console/parts/menu.tsx'
import {
  Chips,
  ConfirmDialog,
  Dialog,
  FormActions,
  ShortId,
  useAction,
  usePoll,
} from '#services/console/parts/parts.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState, OperatorsOnly, Status } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { expiryOf, KeyForm, LIMIT_NAMES, LimitFields, limitTexts, Secret, Text } from './form.tsx'
import {
  type CreatedKey,
  hasMore,
  isLoaded,
  keys,
  nameOf,
  problem,
  projects,
  refresh,
  revokeKey,
  rotateKey,
  saveProject,
  useDraft,
} from './state.ts'

const GRACE_PERIODS = [
  [0, 'Revoke immediately'],
  [3_600, '1 hour'],
  [86_400, '1 day'],
  [604_800, '1 week'],
] as const

const REFRESH_INTERVAL_MS = 10_000
/** Remaining time in seconds (two days) below which an expiry is shown to the minute instead of as a date. */
const SOON_SECONDS = 172_800
const USE_RETENTION_SECONDS = 90 * 86_400
const COLUMNS = ['Key', 'Status', 'Project', 'Permissions', 'Limits', 'This month', '']
const STATES = [
  { id: 'valid', name: 'Valid' },
  { id: 'revoked', name: 'Revoked' },
  { id: 'expired', name: 'Expired' },
  { id: 'all', name: 'All' },
] as const

export function Keys() {
  return (
    <section>
      <OperatorsOnly>
        <KeysAndProjects />
      </OperatorsOnly>
    </section>
  )
}

function KeysAndProjects() {
  const state = queryParam('state') || 'valid'
  const filter = { project: queryParam('project'), state: state === 'all' ? '' : state }
  const refreshList = () => void refresh(filter)
  usePoll(REFRESH_INTERVAL_MS, (signal) => refresh(filter, signal), [filter.project, filter.state])
  return (
    <>
      <div class="title">
        <h1>Keys and projects</h1>
        <DialogButton verb="Create key" isPrimary title="Create key" onClose={refreshList}>
          {(close) => <KeyForm close={close} />}
        </DialogButton>
      </div>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isOwnersKey(ownKey.value?.id) && <OwnersKeyNote />}
      {isLoaded.value && (
        <>
          <Projects refresh={refreshList} />
          <h2>Keys</h2>
          <Filters state={state} project={filter.project} />
          <List refresh={refreshList} />
        </>
      )}
    </>
  )
}

/** Ids of the keys of the service's owner: the key in SLUICE_API_KEY, and the key that the service creates at its first start. */
const FIRST_KEY_IDS = ['key_env', 'key_first']

function isOwnersKey(id: string | undefined): boolean {
  const hasOthers = keys.value.some((key) => key.state === 'valid' && !FIRST_KEY_IDS.includes(key.id))
  return id !== undefined && FIRST_KEY_IDS.includes(id) && isLoaded.value && !hasOthers
}

function OwnersKeyNote() {
  return (
    <p class="note">
      You are signed in with the owner’s key, which may do everything. Create a limited key for each program and each
      person: such a key can be limited to models, endpoints and a budget, and revoked alone.
    </p>
  )
}

function Filters({ state, project }: { readonly state: string; readonly project: string }) {
  return (
    <div class="filters">
      <Chips label="Status" choices={STATES} value={state} onChoose={(id) => setQuery({ state: id })} />
      <select
        aria-label="Project"
        value={project}
        onChange={({ currentTarget }) => setQuery({ project: currentTarget.value })}
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

function List({ refresh }: { readonly refresh: () => void }) {
  if (keys.value.length === 0) {
    return (
      <Empty
        title="No matching keys"
        action={
          <button type="button" onClick={() => setQuery({ state: 'all', project: '' })}>
            Show all keys
          </button>
        }
      />
    )
  }
  return (
    <>
      <Table
        label="Keys"
        columns={COLUMNS}
        numbers={['This month']}
        main={['Key', 'Permissions']}
        card={{ end: 'Status', hidden: ['Permissions'] }}
      >
        {keys.value.map((key) => (
          <Row key={key.id} apiKey={key} refresh={refresh} />
        ))}
      </Table>
      {hasMore.value && (
        <p class="dim">
          Only the first {keys.value.length.toLocaleString('en')} keys are shown. Select a project to see fewer.
        </p>
      )}
    </>
  )
}

function Row({ apiKey, refresh }: { readonly apiKey: ApiKey; readonly refresh: () => void }) {
  const { id, name, hint, project, scopes, endpoints, models, limits, month, state, expires_at } = apiKey
  const isOwn = id === ownKey.value?.id
  return (
    <tr>
      <Cell column="Key">
        <strong>{name ?? keyName(id)}</strong>
        {isOwn && <span class="dim"> (signed in)</span>}
        {name && name !== id && (
          <span class="dim below">
            <ShortId id={id} />
          </span>
        )}
        <code class="dim below wide-only">{hint}</code>
        {apiKey.is_setting && <span class="dim below wide-only">SLUICE_API_KEY</span>}
      </Cell>
      <Cell column="Status">
        <Status status={state} />
        {expires_at !== null && state === 'valid' && (
          <span class="dim below" title={dateTimeText(expires_at)}>
            expires {expiryText(expires_at)}
          </span>
        )}
      </Cell>
      <Cell column="Project">{nameOf(project)}</Cell>
      <Cell column="Permissions">
        {scopes.join(', ')}
        {models && <span class="dim below">{models.join(', ')}</span>}
        {endpoints && <span class="dim below">{endpoints.join(', ')}</span>}
      </Cell>
      <Cell column="Limits">
        {limitTexts(limits).length === 0
          ? '–'
          : limitTexts(limits).map((text) => (
              <span key={text} class="limit">
                {text}
              </span>
            ))}
      </Cell>
      <Cell column="This month">
        {month ? usdText(month.cost_usd) : '–'}
        {month && (
          <span class="dim below">
            {month.calls === 1 ? '1 request' : `${month.calls.toLocaleString('en')} requests`}
          </span>
        )}
        <span class="dim below">{lastUse(apiKey)}</span>
      </Cell>
      <Cell>
        <div class="key-actions">
          <a
            class="button small"
            href={`${BASE}/usage?key=${encodeURIComponent(id)}&by=model`}
            aria-label={`Usage of ${name ?? id}`}
          >
            Usage
          </a>
          {state === 'valid' && !apiKey.is_setting && <KeyActions apiKey={apiKey} refresh={refresh} />}
        </div>
      </Cell>
    </tr>
  )
}

function KeyActions({ apiKey, refresh }: { readonly apiKey: ApiKey; readonly refresh: () => void }) {
  const chosen = useSignal<'edit' | 'rotate' | 'revoke' | undefined>(undefined)
  const what = apiKey.name ?? apiKey.id
  const onClose = () => {
    chosen.value = undefined
    refresh()
  }
  const choose = (action: typeof chosen.value) => () => {
    chosen.value = action
  }
  return (
    <>
      <ActionMenu
        label={`Actions of ${what}`}
        items={[
          { name: 'Edit', onChoose: choose('edit') },
          { name: 'Rotate', onChoose: choose('rotate') },
          { name: 'Revoke', isDestructive: true, onChoose: choose('revoke') },
        ]}
      />
      {chosen.value === 'edit' && (
        <Dialog title={`Edit ${what}`} onClose={onClose}>
          {(close) => <KeyForm before={apiKey} close={close} />}
        </Dialog>
      )}
      {chosen.value === 'rotate' && (
        <Dialog title={`Rotate ${what}`} onClose={onClose}>
          {(close) => <Rotate apiKey={apiKey} close={close} />}
        </Dialog>
      )}
      {chosen.value === 'revoke' && (
        <ConfirmDialog
          isDestructive
          verb="Revoke"
          what={what}
          keep="Keep the key"
          done={`Key ${what} revoked.`}
          action={() => revokeKey(apiKey.id)}
          onClose={onClose}
        >
          <p>
            Requests with this key are rejected from now on, and open streams are closed. Submitted jobs keep running.
            This can’t be undone.
          </p>
          {apiKey.id === ownKey.value?.id && (
            <p class="note warn">You are signed in with this key. Revoking it signs you out.</p>
          )}
        </ConfirmDialog>
      )}
    </>
  )
}

/** Returns the last use of a key. Usage is stored for 90 days only, so an older key may have been used before. */
function lastUse({ id, last_used_on, created_at }: ApiKey): string {
  if (id === ownKey.value?.id) return 'signed in with this key'
  if (last_used_on) return `last used ${dayText(last_used_on)}`
  const isNew = created_at !== null && created_at > serviceNow() - USE_RETENTION_SECONDS
  return isNew ? 'never used' : 'not used in 90 days'
}

function expiryText(expiresAt: number): string {
  return expiresAt - serviceNow() < SOON_SECONDS ? minuteText(expiresAt) : dateText(expiresAt)
}

function Rotate({ apiKey, close }: { readonly apiKey: ApiKey; readonly close: () => void }) {
  const draft = useDraft({ overlap: '86400', expiry: apiKey.expires_at === null ? '' : '30' })
  const created = useSignal<CreatedKey | undefined>(undefined)
  const action = useAction()
  const send = (event: Event) => {
    event.preventDefault()
    void action.run(async () => {
      const expires_at = expiryOf(draft)
      const body = {
        grace_period_seconds: Number(draft.text('overlap')),
        ...(expires_at !== undefined && { expires_at }),
      }
      created.value = await rotateKey(apiKey.id, body)
    })
  }
  if (created.value) return <Secret createdKey={created.value} close={close} />
  return (
    <form class="fields" onSubmit={send}>
      <p>A new key with the same project and permissions replaces {apiKey.name ?? apiKey.id}.</p>
      <label>
        <span>Old key stays valid for</span>
        <select
          value={draft.text('overlap')}
          onChange={({ currentTarget }) => draft.set('overlap', currentTarget.value)}
        >
          {GRACE_PERIODS.map(([seconds, text]) => (
            <option key={seconds} value={String(seconds)}>
              {text}
            </option>
          ))}
        </select>
      </label>
      {apiKey.expires_at !== null && (
        <label>
          <span>New key expires</span>
          <select
            value={draft.text('expiry')}
            onChange={({ currentTarget }) => draft.set('expiry', currentTarget.value)}
          >
            <option value="30">In 30 days</option>
            <option value="90">In 90 days</option>
            <option value="365">In 1 year</option>
            <option value="never">Never</option>
          </select>
        </label>
      )}
      <FormActions action={action} verb="Rotate" close={close} />
    </form>
  )
}

function Projects({ refresh }: { readonly refresh: () => void }) {
  return (
    <>
      <div class="title">
        <h2>Projects</h2>
        <DialogButton verb="Create project" title="Create project" onClose={refresh}>
          {(close) => <ProjectForm close={close} />}
        </DialogButton>
      </div>
      {projects.value.length === 0 ? (
        <Empty title="No projects yet">Create one to give several keys a common budget and common limits.</Empty>
      ) : (
        <ul class="cards" aria-label="Projects">
          {projects.value.map((project) => (
            <Card key={project.id} project={project} refresh={refresh} />
          ))}
        </ul>
      )}
    </>
  )
}

function Card({ project, refresh }: { readonly project: Project; readonly refresh: () => void }) {
  const { id, name, keys, month, budget, limits } = project
  const { budget_usd_per_month: _, ...rest } = limits
  const isEdited = queryParam('edit') === id
  return (
    <li class="card project">
      <div class="title">
        <h3>{name ?? id}</h3>
        <span class="dim">{keys === 1 ? '1 key' : `${keys} keys`}</span>
      </div>
      {name && (
        <span class="dim">
          <ShortId id={id} />
        </span>
      )}
      <p>
        {month
          ? `${usdText(month.cost_usd)} this month, ${month.calls === 1 ? '1 request' : `${month.calls.toLocaleString('en')} requests`}`
          : 'Usage is not recorded.'}
      </p>
      {budget && (
        <label class="budget">
          <span class={budget.remaining_usd === 0 ? 'bad' : 'dim'}>
            {budget.remaining_usd === 0 ? 'Budget used up:' : `${usdText(budget.remaining_usd)} left of`}{' '}
            {usdText(budget.budget_usd)}
          </span>
          <progress value={Math.min(budget.spent_usd, budget.budget_usd)} max={budget.budget_usd || 1} />
        </label>
      )}
      {limitTexts(rest).length > 0 && <p class="dim">{limitTexts(rest).join(', ')}</p>}
      <div class="actions">
        <a
          class="button small"
          href={`${BASE}/usage?project=${encodeURIComponent(id)}&by=key`}
          aria-label={`Usage of ${name ?? id}`}
        >
          Usage
        </a>
        <DialogButton
          verb="Edit"
          isSmall
          title={`Edit ${name ?? id}`}
          isOpenAtFirst={isEdited}
          onClose={() => {
            if (isEdited) setQuery({ edit: '' })
            refresh()
          }}
        >
          {(close) => <ProjectForm before={project} close={close} isBudgetFocused={isEdited} />}
        </DialogButton>
      </div>
    </li>
  )
}

interface ProjectFormProps {
  readonly before?: Project
  readonly close: () => void
  readonly isBudgetFocused?: boolean
}

function ProjectForm({ before, close, isBudgetFocused = false }: ProjectFormProps) {
  const limits = Object.entries(before?.limits ?? {}).map(([name, value]) => [name, String(value)])
  const draft = useDraft({ name: before?.name ?? '', ...Object.fromEntries(limits) })
  const action = useAction()
  const send = (event: Event) => {
    event.preventDefault()
    const body = {
      name: draft.text('name').trim() || null,
      limits: Object.fromEntries(LIMIT_NAMES.map((name) => [name, draft.number(name)])),
    }
    void action
      .run(() => saveProject(before?.id, body), `Project ${before ? 'saved' : 'created'}.`)
      .then((isDone) => isDone && close())
  }
  return (
    <form class="fields" onSubmit={send}>
      <Text draft={draft} name="name" label="Name" hint="e.g. a team or a product" />
      <LimitFields draft={draft} isBudgetFocused={isBudgetFocused} spender={before && { project: before.id }} />
      <p class="dim">Limits apply to all keys of the project together, across the fleet. 0 blocks all.</p>
      <FormActions action={action} verb={before ? 'Save' : 'Create'} close={close} />
    </form>
  )
}

interface DialogButtonProps {
  readonly verb: string
  readonly title: string
  readonly isSmall?: boolean
  readonly isPrimary?: boolean
  readonly isOpenAtFirst?: boolean
  readonly onClose: () => void
  readonly children: (close: () => void) => ComponentChildren
}

function DialogButton({
  verb,
  title,
  isSmall = false,
  isPrimary = false,
  isOpenAtFirst = false,
  onClose,
  children,
}: DialogButtonProps) {
  const isOpen = useSignal(isOpenAtFirst)
  return (
    <>
      <button
        type="button"
        class={isPrimary ? 'primary' : isSmall ? 'small' : undefined}
        aria-label={isSmall ? title : undefined}
        onClick={() => {
          isOpen.value = true
        }}
      >
        {verb}
      </button>
      {isOpen.value && (
        <Dialog
          title={title}
          onClose={() => {
            isOpen.value = false
            onClose()
          }}
        >
          {children}
        </Dialog>
      )}
    </>
  )
}
