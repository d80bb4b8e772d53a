import type { Project } from '#services/console/api/types.ts'
import { useAction } from '#services/console/parts/action.ts'
import { FormActions } from '#services/console/parts/form-actions.tsx'
import { setQuery } from '#services/console/router.ts'
import { DialogButton } from './dialog-button.tsx'
import { useDraft } from './draft.ts'
import { Text } from './form.tsx'
import { LIMIT_NAMES, LimitFields, limitTexts } from './limits.tsx'
import { projects, saveProject } from './state.ts'
import { usd } from './usage.tsx'

export function Projects({ refresh }: { readonly refresh: () => void }) {
  return (
    <>
      <div class="title">
        <h2>Projects</h2>
        <DialogButton verb="Create project" title="Create project" onClose={refresh}>
          {(close) => <ProjectForm close={close} />}
        </DialogButton>
      </div>
      {projects.value.length === 0 ? (
        <p class="card dim">No projects yet. Create one to give several keys a common budget and common limits.</p>
      ) : (
        <ul class="models" aria-label="Projects">
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
  return (
    <li class="card project">
      <div class="title">
        <h3>{name ?? id}</h3>
        <span class="dim">{keys === 1 ? '1 key' : `${keys} keys`}</span>
      </div>
      {name && <code class="dim">{id}</code>}
      <p>
        {month
          ? `${usd(month.cost_usd)} this month, ${month.calls === 1 ? '1 request' : `${month.calls.toLocaleString()} requests`}`
          : 'Usage is not recorded.'}
      </p>
      {budget && (
        <label class="budget">
          <progress value={Math.min(budget.spent_usd, budget.budget_usd)} max={budget.budget_usd || 1} />
          <span class={budget.remaining_usd === 0 ? 'bad' : 'dim'}>
            {budget.remaining_usd === 0 ? 'Budget used up:' : `${usd(budget.remaining_usd)} left of`}{' '}
            {usd(budget.budget_usd)}
          </span>
        </label>
      )}
      {limitTexts(rest).length > 0 && <p class="dim">{limitTexts(rest).join(', ')}</p>}
      <div class="actions">
        <button
          type="button"
          class="small"
          aria-label={`Usage of ${name ?? id}`}
          onClick={() => setQuery({ usage: `project:${id}` })}
        >
          Usage
        </button>
        <DialogButton verb="Edit" isSmall title={`Edit ${name ?? id}`} onClose={refresh}>
          {(close) => <ProjectForm before={project} close={close} />}
        </DialogButton>
      </div>
    </li>
  )
}

function ProjectForm({ before, close }: { readonly before?: Project; readonly close: () => void }) {
  const limits = Object.entries(before?.limits ?? {}).map(([name, value]) => [name, String(value)])
  const draft = useDraft({ name: before?.name ?? '', ...Object.fromEntries(limits) })
  const action = useAction()
  const send = (event: Event) => {
    event.preventDefault()
    const body = {
      name: draft.text('name').trim() || null,
      limits: Object.fromEntries(LIMIT_NAMES.map((name) => [name, draft.number(name)])),
    }
    void action.run(() => saveProject(before?.id, body)).then((isDone) => isDone && close())
  }
  return (
    <form class="fields" onSubmit={send}>
      <Text draft={draft} name="name" label="Name" hint="e.g. a team or a product" />
      <LimitFields draft={draft} />
      <p class="dim">Limits apply to all keys of the project together, across the fleet. 0 blocks all.</p>
      <FormActions action={action} verb={before ? 'Save' : 'Create'} close={close} />
    </form>
  )
}
