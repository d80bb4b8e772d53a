/** The status of a job or worker as a coloured label. */
export function Status({ of }: { readonly of: string }) {
  return <span class={`status ${of}`}>{of.replace('_', ' ')}</span>
}
