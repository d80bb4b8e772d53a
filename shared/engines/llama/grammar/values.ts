import { numberOf, type Schema } from '#shared/json-schema/json-schema.ts'
import { alike, Impossible, type Match, matchOf } from './match.ts'
import { multiplesOf } from './multiples.ts'
import { type Bounds, floatRange, integerRange } from './numbers.ts'

export interface Member {
  readonly name: string
  readonly value: Match
  readonly pair: string
  readonly isRequired: boolean
}

/** The constant beginning of an object: its members up to the first that is optional or not constant. */
export function openingOf(members: readonly Member[]): string {
  let opening = '{'
  for (const { name, value, isRequired } of members) {
    if (!isRequired) break
    opening += `${opening === '{' ? '' : ', '}${JSON.stringify(name)}: ${value.opening}`
    if (!value.isWhole) break
  }
  return opening
}

export const VALUE = alike('value', 8)
export const OBJECT = matchOf('object', '{', [VALUE])
export const STRING = matchOf('string', '"')

/** A number or integer within the bounds of a schema, and a multiple of its `multipleOf`. @throws SchemaProblem, Impossible */
export function numberMatch(schema: Schema, isInteger: boolean, path: string): Match {
  const bounds = boundsOf(schema)
  const steps = [schema.multipleOf].flat().filter((step) => typeof step === 'number' && step > 0) as number[]
  const text = steps.length > 0 ? multiplesOf(steps, bounds, isInteger) : plainNumber(bounds, isInteger)
  if (text === undefined) throw new Impossible(path)
  return alike(text, text.split(' | ').length + 1)
}

function plainNumber(bounds: Bounds, isInteger: boolean): string | undefined {
  const isOpen = Object.values(bounds).every((bound) => bound === undefined)
  if (isOpen) return isInteger ? 'integer' : 'number'
  return isInteger ? integerRange(bounds) : floatRange(bounds)
}

function boundsOf(schema: Schema): Bounds {
  return {
    minimum: numberOf(schema, 'minimum'),
    maximum: numberOf(schema, 'maximum'),
    exclusiveMinimum: numberOf(schema, 'exclusiveMinimum'),
    exclusiveMaximum: numberOf(schema, 'exclusiveMaximum'),
  }
}
