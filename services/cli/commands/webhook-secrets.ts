import { type Command, type Invocation, noArguments, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { projectIdFor } from '#services/cli/keys/rights.ts'
import { timeText } from '#services/cli/keys/show.ts'
import { author, runOnStore, type StoreAction } from '#services/cli/keys/store.ts'
import { didYouMean } from '#services/cli/text/near.ts'
import { tableOf } from '#services/cli/text/output.ts'
import type { KeyStore } from '#shared/keys/keys.ts'
import {
  DEFAULT_SECRET_ID,
  hintOf,
  newWebhookSecret,
  WEBHOOK_SECRETS_MAX,
  type WebhookSecret,
  webhookSecretsOf,
} from '#shared/keys/webhook-secrets.ts'

/** `sluice webhook-secrets` */
export const webhookSecrets: Command = {
  summary: 'Show and change the secrets that sign the webhooks of a project',
  help: `Usage: sluice webhook-secrets list --project P
       sluice webhook-secrets show --project P
       sluice webhook-secrets create --project P
       sluice webhook-secrets delete ID --project P

Each project has a secret of its own from the start. To change it without a gap: create a second one, which signs beside the
first; give it to the receivers; delete the first. A project has at most ${WEBHOOK_SECRETS_MAX}, and never none. show prints the secrets
themselves; a project reads its own at GET /v1/webhook-secrets.

Works on the key store itself, not over HTTP, as sluice keys does. The next message is signed with what there is then.

Options:
  --project P  id or name of a project; of a key without project: the id of the key

Examples:
  sluice webhook-secrets create --project search
  sluice webhook-secrets list --project search
  sluice webhook-secrets delete whs_7Qm2xT9bVd4KpZsR --project search`,
  options: { project: { type: 'string' } },
  run: (invocation) => runOnStore('webhook-secrets', ACTIONS, invocation),
}

const ACTIONS: Readonly<Record<string, StoreAction>> = {
  list: { options: ['project'], run: list },
  show: { options: ['project'], run: show },
  create: { options: ['project'], run: create },
  delete: { options: ['project'], run: remove },
}

async function list(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  noArguments(args)
  const { out } = invocation
  const secrets = await webhookSecretsOf(store, await projectOf(store, invocation))
  if (!out.isForPeople) for (const one of secrets) await out.json(listed(one))
  else {
    const created = (one: WebhookSecret) => (one.id === DEFAULT_SECRET_ID ? '' : timeText(one.created_at))
    const rows = secrets.map((one) => [one.id, hintOf(one), created(one)])
    await out.write(tableOf({ head: ['id', 'secret', 'created'], rows, spare: [] }, out.columns))
  }
  return EXIT.ok
}

async function show(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  noArguments(args)
  const { out } = invocation
  for (const one of await webhookSecretsOf(store, await projectOf(store, invocation))) {
    if (out.isForPeople) await out.write(`${one.secret}\n`)
    else await out.json({ ...listed(one), secret: one.secret })
  }
  return EXIT.ok
}

async function create(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  noArguments(args)
  const { out } = invocation
  const project = await projectOf(store, invocation)
  const secret = newWebhookSecret(project)
  const [present] = await webhookSecretsOf(store, project)
  // What has signed so far goes on beside the new one, and is the older of the two.
  const first = { ...newWebhookSecret(project, present.secret), created_at: secret.created_at - 1 }
  if (!(await store.createWebhookSecret(secret, first, author()))) {
    const next = `Delete one first: sluice webhook-secrets list --project ${project}`
    throw new CommandError(EXIT.refused, `${project} has ${WEBHOOK_SECRETS_MAX} secrets, which is the most.`, next)
  }
  if (!out.isForPeople) await out.json({ ...listed(secret), secret: secret.secret })
  else {
    await out.write(`${secret.secret}\n`)
    out.note(`This is ${secret.id}. It signs beside the one there was, until you delete that.`)
  }
  return EXIT.ok
}

async function remove(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  const { out } = invocation
  const id = onlyArgument(args, 'the id of a secret')
  const project = await projectOf(store, invocation)
  const end = await store.deleteWebhookSecret(project, id, author())
  if (end !== 'deleted') throw await notDeleted(store, project, id, end)
  if (out.isForPeople) await out.write(`${id} is deleted.\n`)
  else await out.json({ id, project, deleted: true })
  return EXIT.ok
}

async function notDeleted(store: KeyStore, project: string, id: string, why: 'last' | 'none'): Promise<CommandError> {
  const secrets = await webhookSecretsOf(store, project)
  if (why === 'last' || secrets.some((one) => one.id === id)) {
    const next = `Create another first: sluice webhook-secrets create --project ${project}`
    return new CommandError(EXIT.refused, `${id} is the only secret of ${project}.`, next)
  }
  const ids = secrets.map((one) => one.id)
  const next = `${didYouMean(id, ids)}There are: ${ids.join(', ')}`
  return new CommandError(EXIT.refused, `${project} has no secret ${id}.`, next)
}

async function projectOf(store: KeyStore, { values }: Invocation): Promise<string> {
  const asked = values.text('project')
  if (asked !== undefined) return await projectIdFor(store, asked, `--project ${asked}`)
  throw usageError('Whose? Give --project.', 'See them: sluice projects list')
}

function listed(secret: WebhookSecret) {
  const { id, project, created_at } = secret
  const isDefault = id === DEFAULT_SECRET_ID
  return { id, project, hint: hintOf(secret), created_at: isDefault ? null : created_at, is_default: isDefault }
}
