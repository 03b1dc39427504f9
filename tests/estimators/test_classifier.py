"""The classifiers: scikit-learn's contract, and laws of log-odds."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier


@parametrize_with_checks([SecondOrderClassifier(), FactorizationMachineClassifier()])
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)
