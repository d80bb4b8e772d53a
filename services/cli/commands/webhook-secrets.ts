import { CommandError, didYouMean, EXIT, type ExitCode, tableOf, usageError } from '#services/cli/text/output.ts'
import type { KeyStore } from '#shared/keys/keys.ts'
import {
  DEFAULT_SECRET_ID,
  hintOf,
  newWebhookSecret,
  WEBHOOK_SECRETS_MAX,
  type WebhookSecret,
  webhookSecretsOf,
} from '#shared/keys/webhook-secrets.ts'
import { type Command, type Invocation, noArguments, onlyArgument } from './command.ts'
import { author, projectIdFor, runOnStore, type StoreAction, timeText } from './key-store.ts'

export const webhookSecrets: Command = {
  summary: "Show and rotate a project's webhook signing secrets",
  isList: true,
  help: `Usage: sluice webhook-secrets list --project P
       sluice webhook-secrets show --project P
       sluice webhook-secrets create --project P
       sluice webhook-secrets delete ID --project P

Webhooks of a project are signed with its own secret. To rotate the secret without downtime: (1) create a second secret, so that
messages have both signatures; (2) configure the second secret in the receivers; (3) delete the first one. A project has one to
${WEBHOOK_SECRETS_MAX} secrets. show prints the secret values; GET /v1/webhook-secrets returns them to the project's keys.

Reads and writes the key store directly, as sluice keys does. A change applies from the next message on.

Options:
  --project P  id or name of a project; for a standalone key, the id of the key

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
  if (!out.isHumanReadable) for (const one of secrets) await out.json(listed(one))
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
    if (out.isHumanReadable) await out.write(`${one.secret}\n`)
    else await out.json({ ...listed(one), secret: one.secret })
  }
  return EXIT.ok
}

async function create(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  noArguments(args)
  const { out } = invocation
  const project = await projectOf(store, invocation)
  const secret = newWebhookSecret(project)
  const [current] = await webhookSecretsOf(store, project)
  // Until its first secret is created, a project signs with a default secret, which is derived from its id. The default secret is stored
  // together with the new one, as the older of the two. Messages then have the signatures of both, so that receivers with the default secret
  // still accept them.
  const first = { ...newWebhookSecret(project, current.secret), created_at: secret.created_at - 1 }
  if (!(await store.createWebhookSecret(secret, first, author()))) {
    const next = `Delete a secret first. To list the secrets: sluice webhook-secrets list --project ${project}`
    throw new CommandError(EXIT.refused, `${project} has ${WEBHOOK_SECRETS_MAX} secrets, the maximum.`, next)
  }
  if (!out.isHumanReadable) await out.json({ ...listed(secret), secret: secret.secret })
  else {
    await out.write(`${secret.secret}\n`)
    out.note(`Created ${secret.id}. Messages carry the signatures of both secrets until you delete the old one.`)
  }
  return EXIT.ok
}

async function remove(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  const { out } = invocation
  const id = onlyArgument(args, 'ID of a secret')
  const project = await projectOf(store, invocation)
  const outcome = await store.deleteWebhookSecret(project, id, author())
  if (outcome !== 'deleted') throw await notDeleted(store, project, id, outcome)
  if (out.isHumanReadable) await out.write(`Deleted ${id}.\n`)
  else await out.json({ id, project, deleted: true })
  return EXIT.ok
}

async function notDeleted(
  store: KeyStore,
  project: string,
  id: string,
  reason: 'last' | 'none',
): Promise<CommandError> {
  const secrets = await webhookSecretsOf(store, project)
  if (reason === 'last' || secrets.some((one) => one.id === id)) {
    const next = `Create another secret first: sluice webhook-secrets create --project ${project}`
    return new CommandError(EXIT.refused, `${id} is the only secret of ${project}; a project must have one.`, next)
  }
  const ids = secrets.map((one) => one.id)
  const next = `${didYouMean(id, ids)}Available secrets: ${ids.join(', ')}.`
  return new CommandError(EXIT.refused, `${project} has no secret ${id}.`, next)
}

async function projectOf(store: KeyStore, { values }: Invocation): Promise<string> {
  const project = values.text('project')
  if (project !== undefined) return await projectIdFor(store, project, `--project ${project}`)
  throw usageError('Missing option: --project.', 'To list projects: sluice projects list')
}

function listed(secret: WebhookSecret) {
  const { id, project, created_at } = secret
  const isDefault = id === DEFAULT_SECRET_ID
  return { id, project, hint: hintOf(secret), created_at: isDefault ? null : created_at, is_default: isDefault }
}
