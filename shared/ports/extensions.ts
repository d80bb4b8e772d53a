import { stat } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { ConfigError } from '#shared/config/config.ts'
import { coversPath, KEY_ENDPOINTS } from '#shared/keys/keys.ts'
import { type Handler, handle, type Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'

const LOAD_TIMEOUT_MS = 10_000

/**
 * A kind of job that is defined outside of this repository, with its handler and the endpoint that creates its jobs (docs/guides/extensions.md). In
 * jobs, logs and metrics, the name of the kind appears as the model.
 */
export interface Extension<Request = unknown, Event = unknown> extends Kind<Request, Event> {
  /** Path of the endpoint, such as `/v1/shout`. */
  readonly path: string
  /** Summary in the API reference: an imperative without a full stop. */
  readonly summary: string
  /** Schema of the whole answer, for the API reference. Default: any JSON. */
  readonly result?: z.ZodType
  readonly run: Handler<Request, Event>['run']
}

/** Parts of Sluice that an extension needs. Extensions receive them as an argument, so that they need not import from Sluice. */
export interface ExtensionTools {
  readonly z: typeof z
  readonly ServiceError: typeof ServiceError
}

const Run = z.custom<CallableFunction>((value) => typeof value === 'function', 'Expected a function')
const Schema = z.custom<z.ZodType>((value) => typeof (value as z.ZodType | null)?.safeParse === 'function', {
  error: 'Expected a zod schema',
})
const Shape = z.looseObject({
  name: z.string().regex(/^[a-z][a-z0-9_]{0,39}$/, 'Expected a lower-case name, such as shout'),
  pool: PoolName.exclude(['batches']),
  path: z
    .string()
    .regex(/^\/v1(\/[a-z0-9_-]+)+$/, 'Expected a path such as /v1/shout')
    .refine((path) => !KEY_ENDPOINTS.some((known) => coversPath([known], path) || coversPath([path], known)), {
      error: 'The path belongs to another endpoint',
    })
    .refine((path) => !coversPath(['/v1/admin'], path), { error: 'The path belongs to the admin API' }),
  summary: z.string().min(1).max(80),
  request: Schema,
  result: Schema.optional(),
  run: Run,
  merge: Run,
  isOutput: Run,
  answer: Run,
})

/**
 * Loads the modules of the setting EXTENSIONS.
 *
 * @param files Absolute paths
 * @throws ConfigError with the reason if a module is missing, fails, or describes no valid kind
 */
export async function loadExtensions(files: readonly string[]): Promise<readonly Extension[]> {
  const loaded: Extension[] = []
  for (const file of files) {
    const extension = await loadExtension(file).catch((error: unknown) => {
      throw new ConfigError([`EXTENSIONS: ${file}: ${error instanceof Error ? error.message : String(error)}`])
    })
    const twin = loaded.find(({ name, path }) => name === extension.name || path === extension.path)
    if (twin) throw new ConfigError([`EXTENSIONS: ${file}: another module already has this name or path.`])
    loaded.push(extension)
  }
  return loaded
}

async function loadExtension(file: string): Promise<Extension> {
  const isFile = await stat(file).then(
    (found) => found.isFile(),
    () => false,
  )
  if (!isFile) throw new Error('No such file exists.')
  const late = new AbortController()
  const module = (await Promise.race([
    import(pathToFileURL(file).href),
    delay(LOAD_TIMEOUT_MS, undefined, { signal: late.signal }).then(() => {
      throw new Error(`The module did not load within ${LOAD_TIMEOUT_MS / 1_000} seconds.`)
    }),
  ]).finally(() => late.abort())) as { extension?: unknown }
  if (typeof module.extension !== 'function') throw new Error("The module must export a function named 'extension'.")
  const extension: unknown = module.extension({ z, ServiceError } satisfies ExtensionTools)
  const checked = Shape.safeParse(extension)
  if (!checked.success) {
    const [issue] = checked.error.issues
    throw new Error(`${issue?.path.join('.') || 'value'}: ${issue?.message}.`)
  }
  const { answer, path } = extension as Extension
  const encoder: Partial<ReturnType<typeof answer>> | undefined = answer(path)
  if (typeof encoder?.whole !== 'function') throw new Error("answer: Expected a function that returns 'whole'.")
  return extension as Extension
}

/**
 * Returns the handlers of the extensions of a pool, by kind.
 *
 * @throws ConfigError if the pool already has a kind of that name
 */
export function handlersOf(
  extensions: readonly Extension[],
  { name: pool, kinds }: { readonly name: PoolName; readonly kinds: Readonly<Record<string, Handler>> },
): Readonly<Record<string, Handler>> {
  const own = extensions.filter((extension) => extension.pool === pool)
  const twin = own.find(({ name }) => Object.hasOwn(kinds, name))
  if (twin) throw new ConfigError([`EXTENSIONS: the pool ${pool} already has a kind named '${twin.name}'.`])
  return Object.fromEntries(own.map((extension) => [extension.name, handle(extension, extension.run)]))
}
